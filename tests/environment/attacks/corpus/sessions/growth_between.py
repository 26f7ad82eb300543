# Grows between two calls, when nobody seems to look.
# outcome: ok out_of_memory
# session: a
# memory: 96
import os
import time

for _ in range(6):
    if os.fork() == 0:
        time.sleep(0.1)
        block = bytearray(b"x" * (64 * 2**20))
        time.sleep(20)
        os._exit(0)
x = 1
# %%
# outcome: ok error out_of_memory infrastructure
# session: a
# wait: 0.6
# memory: 96
import os

try:
    os.waitpid(-1, os.WNOHANG)
    count = 0
    for line in os.popen("cat /proc/meminfo 2>/dev/null"):
        count += 1
except OSError:
    pass
print("still", x)
