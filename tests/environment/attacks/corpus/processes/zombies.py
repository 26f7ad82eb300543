# Leaves children that nobody waits for.
# outcome: ok
import os

count = 0
try:
    for _ in range(500):
        if os.fork() == 0:
            os._exit(0)
        count += 1
except OSError as error:
    print("held at", count, error.strerror)
print("done")
