# Keeps its data in files that have no name, which no map and no folder shows.
# outcome: out_of_memory error ok denied
# memory: 64
import os
import time

total = 0
try:
    for number in range(240):
        file = os.memfd_create(f"f{number}")
        for _ in range(64):
            total += os.write(file, bytes(2**20))
            if total > 512 * 2**20:
                break
        if total > 512 * 2**20:
            break
except OSError as error:
    print(error.strerror)
time.sleep(0.3)
if total > 256 * 2**20:
    print("BREACH: holds", total >> 20, "MiB")
