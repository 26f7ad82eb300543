# Runs the host's set-uid programs, and makes one of its own.
# outcome: ok
import os
import shutil
import subprocess

shutil.copy("/usr/bin/id", "/tmp/id")
os.chmod("/tmp/id", 0o6777)
try:
    print(subprocess.run(["/tmp/id"], capture_output=True, text=True).stdout)
except OSError as error:
    print(error.strerror)
for command in (
    ["su", "-c", "id"],
    ["mount", "-t", "tmpfs", "none", "/tmp"],
    ["sudo", "-n", "id"],
    ["newgrp"],
    ["passwd", "-S"],
):
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=1, stdin=subprocess.DEVNULL
        )
        if (
            done.returncode == 0
            and "uid=0" in done.stdout
            or command[0] == "mount"
            and done.returncode == 0
        ):
            print("BREACH:", command, done.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(command[0], type(error).__name__)
