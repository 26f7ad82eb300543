# Looks for a descriptor of a /proc among what was left open, in a session's process and in its own.
# outcome: ok error
# session: a
import os

for descriptor in range(3, 256):
    for path in (
        "1/environ",
        "self/status",
        "1/maps",
        f"{os.getppid()}/mem",
        "@HOST_PID@/environ",
        "sys/kernel/hostname",
    ):
        try:
            print("BREACH:", path, os.read(os.open(path, os.O_RDONLY, dir_fd=descriptor), 99))
        except OSError:
            pass
# %%
# outcome: ok error
import os

for descriptor in range(3, 256):
    for path in ("1/environ", "self/status", "1/maps", "@HOST_PID@/environ"):
        try:
            print("BREACH:", path, os.read(os.open(path, os.O_RDONLY, dir_fd=descriptor), 99))
        except OSError:
            pass
