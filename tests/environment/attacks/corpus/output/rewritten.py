# Takes back what it wrote: truncates, seeks, maps its own stream, seals it.
# outcome: ok error output_limit
import fcntl
import mmap
import os

print("first", flush=True)
for descriptor in (1, 2, 3, 4):
    for attempt in (
        lambda fd: os.ftruncate(fd, 0),
        lambda fd: os.lseek(fd, 0, os.SEEK_SET),
        lambda fd: mmap.mmap(fd, 4096).write(b"mapped" * 100),
        lambda fd: fcntl.fcntl(fd, 1033, 0xF),  # seals
        lambda fd: fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK),
        lambda fd: fcntl.fcntl(fd, 1031, 4096),
    ):
        try:
            attempt(descriptor)
        except (OSError, ValueError):
            pass
print("last")
