# Fills every descriptor with a megabyte of garbage, from a thread and from children.
# outcome: error output_limit timeout infrastructure
# wall: 1
import os
import random

if os.fork() == 0:
    os.setsid()
garbage = random.Random(1).randbytes(2**20)
for descriptor in range(3, 64):
    try:
        os.set_blocking(descriptor, False)
        for _ in range(4):
            os.write(descriptor, garbage)
    except OSError:
        pass
raise ValueError("failed")
