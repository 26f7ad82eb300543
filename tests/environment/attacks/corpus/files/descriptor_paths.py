# Walks up from every open descriptor, in case one is a folder or a file of the host.
# outcome: ok
import os
import stat

for descriptor in range(1024):
    try:
        kind = os.fstat(descriptor)
    except OSError:
        continue
    print(descriptor, oct(kind.st_mode))
    if stat.S_ISDIR(kind.st_mode):
        for path in (".", "..", "../../../../.."):
            try:
                print("BREACH: a folder", os.listdir(os.open(path, os.O_RDONLY, dir_fd=descriptor)))
            except OSError:
                pass
    if stat.S_ISSOCK(kind.st_mode) and descriptor < 3:
        print("BREACH: a socket as a stream")
