# Leaves flags, owners and places on the open files that the next call is given too.
# outcome: ok error output_limit
import fcntl
import os

for descriptor in (0, 1, 2, 3):
    for flags in (os.O_APPEND, os.O_NONBLOCK, os.O_DIRECT, os.O_NOATIME, os.O_ASYNC, 0x7FFFFFFF):
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | flags)
        except OSError:
            pass
    for attempt in (
        lambda fd: os.lseek(fd, 200_000, os.SEEK_SET),
        lambda fd: fcntl.flock(fd, fcntl.LOCK_EX),
        lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX),
        lambda fd: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK),
        lambda fd: os.fchmod(fd, 0),
        lambda fd: os.setxattr(f"/proc/self/fd/{fd}", "user.x", b"y"),
    ):
        try:
            attempt(descriptor)
        except OSError:
            pass
# %%
# outcome: ok
# copies: 3
# shows: ^first\nsecond\n\n\nvalue='value'$
print("first", flush=True)
print("second", flush=True)
"value"
# %%
# outcome: error
# copies: 3
# shows: ^first\n\nTraceback
# never: \x00
print("first")
1 / 0
