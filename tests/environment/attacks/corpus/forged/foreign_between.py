# Makes a system call of another architecture while its session stands idle.
# session: foreign
# outcome: ok
import ctypes
import threading
import time

libc = ctypes.CDLL(None, use_errno=True)
threading.Thread(
    target=lambda: (time.sleep(0.05), libc.syscall(ctypes.c_long(0x40000000 | 39)))
).start()
kept = 7
# %%
# session: foreign
# outcome: ok error denied
# wait: 0.4
# runs: 2
kept
