# Maps memory and files as arrays.
# outcome: ok error
import numpy as np

for path in ("/proc/self/mem", "/dev/mem", "/proc/kcore", "@SECRET_FILE@", "/etc/passwd"):
    for read in (
        lambda path: np.memmap(path, mode="r"),
        lambda path: np.fromfile(path, dtype="u1", count=64),
    ):
        try:
            print("BREACH: read", path, bytes(read(path)[:64]))
        except (OSError, ValueError) as error:
            print(path, error)
