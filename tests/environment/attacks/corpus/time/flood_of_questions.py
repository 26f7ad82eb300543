# Keeps whoever answers for the filter busy from many processes, and runs on behind that.
# outcome: timeout
# wall: 1
# cpu: 60
import ctypes
import os

libc = ctypes.CDLL(None)
act = (ctypes.c_uint64 * 4)(0, 0, 0, 0)
for _ in range(20):
    if os.fork() == 0:
        break
while True:
    libc.ptrace(0, 0, 0, 0)
    libc.flock(1, 2)
    libc.syscall(13, 17, act, 0, 8)
    libc.socket(1, 1, 0)
