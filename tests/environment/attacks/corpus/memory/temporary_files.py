# Fills /tmp, which is memory.
# outcome: ok error output_limit out_of_memory
# shows: No space|File too large|Disk quota
# heavy: yes
import os

total = 0
try:
    for number in range(5000):
        with open(f"/tmp/{number}", "wb") as file:
            total += file.write(bytes(900_000))
except OSError as error:
    print(error.strerror, total)
if total > 300 * 2**20:
    print("BREACH: filled", total)
