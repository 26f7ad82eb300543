# Ends its own process between two calls.
# outcome: ok
# session: a
import os
import threading

threading.Timer(0.1, os._exit, (0,)).start()
x = 1
# %%
# outcome: ok error
# session: a
# wait: 0.2
# runs: 2
print("again")
# %%
# outcome: ok error
# session: a
# wait: 0.2
# runs: 2
print("and again")
