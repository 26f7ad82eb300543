# Opens its streams anew by /proc and /dev/fd, to empty them or to write where it may not.
# outcome: ok error
import os

for folder in ("/proc/self/fd", "/dev/fd", "/proc/thread-self/fd"):
    for descriptor in range(16):
        for flags in (os.O_RDWR | os.O_TRUNC, os.O_RDONLY, os.O_WRONLY | os.O_APPEND):
            try:
                os.write(os.open(f"{folder}/{descriptor}", flags), b"written anew\n" * 10)
            except OSError:
                pass
print("kept")
