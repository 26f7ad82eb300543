# Asks how much memory is free, how many processes there are, how busy the machine is.
# outcome: ok
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
figures = (ctypes.c_ulong * 64)()
if libc.sysinfo(figures) == 0 or any(figures):
    print("BREACH: sysinfo", list(figures)[:12])
try:
    print("BREACH: load", os.getloadavg())
except OSError:
    pass
