# Reads a secret of the host by its path, and by every path that usually leads there.
# outcome: ok error
import os

PATHS = [
    "@SECRET_FILE@",
    "@HOME@/.ssh/id_secret",
    "/etc/shadow",
    "/etc/passwd",
    "/etc/hosts",
    "/root/.bashrc",
]
for path in PATHS + [
    f"/proc/{pid}/root@SECRET_FILE@" for pid in ("self", 1, os.getppid(), "@HOST_PID@")
]:
    try:
        with open(path, errors="replace") as file:
            print("BREACH: read", path, file.read(100))
    except OSError as error:
        print(path, error.strerror)
