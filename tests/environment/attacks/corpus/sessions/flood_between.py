# Writes to its streams between two calls: not into the output of the next one of others.
# outcome: ok output_limit
# session: a
import os
import threading
import time


def flood():
    while True:
        try:
            os.write(1, b"between\n" * 1000)
        except OSError:
            time.sleep(0.001)


threading.Thread(target=flood, daemon=True).start()
# %%
# outcome: ok
# session: b
# wait: 0.2
# never: between
print("mine")
# %%
# outcome: ok
# copies: 2
# never: between
print("mine")
# %%
# outcome: ok output_limit error timeout infrastructure
# session: a
# wall: 1
print("mine")
