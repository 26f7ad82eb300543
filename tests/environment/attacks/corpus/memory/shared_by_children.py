# Children that each map the same large file of their own making.
# outcome: ok error out_of_memory
# memory: 96
import mmap
import os
import time

area = mmap.mmap(-1, 60 * 2**20)
for _ in range(6):
    if os.fork() == 0:
        area[::4096] = b"x" * (len(area) // 4096)
        time.sleep(0.3)
        os._exit(0)
for _ in range(6):
    os.wait()
print("done")
