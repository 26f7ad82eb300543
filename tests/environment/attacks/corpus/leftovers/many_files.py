# Leaves as many names as there may be.
# outcome: ok error
# heavy: yes
import os

try:
    for number in range(20_000):
        os.mknod(f"/tmp/{number}")
except OSError as error:
    print(error.strerror)
