# Drops pages of files that all can read from memory, to see later which of them others have read, or to be seen itself.
# outcome: ok
import ctypes
import mmap
import os
import sys

name = max(
    (
        f"{folder}/{each}"
        for folder in ("/usr/bin", "/usr/lib")
        for each in os.listdir(folder)
        if os.path.isfile(f"{folder}/{each}")
    ),
    key=os.path.getsize,
)


def cached(file):
    try:
        return os.preadv(file, [bytearray(1)], size, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False
    except OSError:
        return None


file = os.open(name, os.O_RDONLY)
size = os.fstat(file).st_size // 8192 * 4096
os.pread(file, 1, size)
before = cached(file)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
print("BREACH: dropped" if before and cached(file) is False else f"kept {before}")
