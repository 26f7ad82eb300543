# The same, from many processes.
# outcome: out_of_memory error ok denied timeout
# memory: 64
# wall: 6
# cpu: 8
import os
import time

for _ in range(8):
    if os.fork() == 0:
        total = 0
        try:
            for number in range(200):
                file = os.memfd_create(f"f{number}")
                for _ in range(4):
                    total += os.write(file, bytes(2**18))
        except OSError:
            pass
        if total > 128 * 2**20:
            os.write(1, b"BREACH: each of eight holds 128 MiB\n")
        time.sleep(0.5)
        os._exit(0)
for _ in range(8):
    os.wait()
