# Makes its stream appear as large as can be, without writing: seek, truncate, allocate.
# outcome: ok error output_limit
import os

for descriptor in range(1, 8):
    for attempt in (
        lambda fd: os.lseek(fd, 2**40, os.SEEK_SET),
        lambda fd: os.ftruncate(fd, 2**40),
        lambda fd: os.ftruncate(fd, 2**62),
        lambda fd: os.posix_fallocate(fd, 0, 2**33),
        lambda fd: os.pwrite(fd, b"far away", 2**41),
        lambda fd: os.write(fd, b"far away"),
    ):
        try:
            attempt(descriptor)
        except OSError:
            pass
