# Makes children that are not its own but its parent's.
# outcome: ok error denied
import ctypes
import os
import time

libc = ctypes.CDLL(None, use_errno=True)
CLONE_PARENT = 0x8000
if os.fork() == 0:
    if libc.syscall(56, CLONE_PARENT | 17, 0, 0, 0, 0) == 0:
        time.sleep(60)
    os._exit(0)
if libc.syscall(56, CLONE_PARENT | 17, 0, 0, 0, 0) == 0:
    time.sleep(60)
time.sleep(0.05)
print("done")
