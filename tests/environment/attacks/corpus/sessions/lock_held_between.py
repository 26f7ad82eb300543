# Holds the interpreter's lock between two calls, so that the next one never begins.
# outcome: ok timeout
# session: a
import threading
import time

threading.Thread(target=lambda: (time.sleep(0.05), sum(iter(int, 1))), daemon=True).start()
# %%
# outcome: ok timeout infrastructure error
# session: a
# wait: 0.3
# wall: 0.6
print("never")
# %%
# outcome: ok
# copies: 2
print("others go on")
