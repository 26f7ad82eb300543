# Leaves processes that are another one each time somebody looks, so that no one can stop them.
# outcome: ok
# session: a
import ctypes
import os

libc = ctypes.PyDLL(None)
for _ in range(12):
    try:
        if os.fork() == 0:
            os.setsid()
            while True:
                if libc.fork() > 0:
                    libc._exit(0)
    except OSError:
        pass
# %%
# outcome: ok error timeout out_of_memory
# session: a
# wait: 0.4
# wall: 1
print("again")
# %%
# outcome: ok
# session: b
# shows: other
print("other")
