# Makes a system call of another architecture in a child, and goes on as if nothing had been.
# outcome: denied ok
# never: unharmed.*BREACH
import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
if os.fork() == 0:
    libc.syscall(ctypes.c_long(0x40000000 | 39))
    os._exit(0)
os.wait()
if platform.machine() == "x86_64":
    print("BREACH: a foreign call was made")
