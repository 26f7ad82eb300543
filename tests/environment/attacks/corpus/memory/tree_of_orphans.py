# The same by children that no longer have a parent, each in a session of its own.
# outcome: out_of_memory
# memory: 96
import os
import time

for _ in range(8):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            block = bytearray(b"x" * (64 * 2**20))
            time.sleep(200)
        os._exit(0)
    os.wait()
time.sleep(100)
print("BREACH: half a GiB under 96 MiB")
