# Random system calls with random arguments, from a child so that it ends well.
# outcome: ok error timeout out_of_memory denied output_limit
# wall: 1
import ctypes
import os
import random

libc = ctypes.CDLL(None, use_errno=True)
for _ in range(12):
    if (child := os.fork()) == 0:
        chance = random.Random(os.urandom(8))
        for _ in range(300):
            number = chance.randrange(470)
            if number not in (1, 35, 56, 57, 58, 230):
                libc.syscall(
                    number, *(chance.choice([0, 1, -1, 3, 2**31, id(child)]) for _ in range(6))
                )
        os._exit(0)
    os.waitpid(child, os.WNOHANG)
print("done")
