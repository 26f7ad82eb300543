# Looks for other processes, and reads their command lines.
# outcome: ok
import os
import subprocess

try:
    for pid in os.listdir("/proc"):
        if pid.isdigit() and int(pid) not in (1, os.getpid()):
            print("BREACH: sees", pid, open(f"/proc/{pid}/cmdline").read())
except OSError as error:
    print(error.strerror)
try:
    print(subprocess.run(["ps", "aux"], capture_output=True, text=True).stdout)
except OSError as error:
    print(error.strerror)
for pid in (int("@HOST_PID@"), int("@VICTIM_PID@"), *range(2, 3000)):
    try:
        os.kill(pid, 0)
        print("BREACH: process", pid)
    except ProcessLookupError:
        pass
    except PermissionError:
        print("BREACH: sees process", pid)
