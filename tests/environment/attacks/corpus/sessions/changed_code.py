# Holds on to the file that code comes in, and writes into it between the calls.
# outcome: ok
# session: a
import os
import threading
import time


def write():
    while True:
        for descriptor in range(4, 32):
            try:
                os.pwrite(descriptor, b"print('another code')  #", 0)
                os.ftruncate(descriptor, 27)
            except OSError:
                pass
        time.sleep(0.001)


threading.Thread(target=write, daemon=True).start()
# %%
# outcome: ok error timeout out_of_memory
# session: a
# wall: 1
# wait: 0.1
x = 1
# %%
# outcome: ok
# copies: 3
# shows: mine
print("mine")
