# Forbids others to look into its processes, so that nobody sees what they hold.
# outcome: out_of_memory
# memory: 64
import ctypes
import os
import time

ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
for _ in range(6):
    if os.fork() == 0:
        kept = b"x" * (50 << 20)
        time.sleep(60)
time.sleep(60)
