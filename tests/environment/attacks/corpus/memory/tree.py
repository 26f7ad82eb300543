# Spreads over children: each within its limit, all together far beyond.
# outcome: out_of_memory
# memory: 96
import os
import time

for _ in range(8):
    if os.fork() == 0:
        block = bytearray(b"x" * (64 * 2**20))
        time.sleep(200)
time.sleep(100)
print("BREACH: half a GiB under 96 MiB")
