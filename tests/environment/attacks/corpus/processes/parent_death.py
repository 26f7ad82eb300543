# Asks for signals at its parent's death, to become a reaper of others, and to be undumpable.
# outcome: ok
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
for option, argument in ((1, 9), (36, 1), (4, 0), (4, 1), (4, 2), (8, 1), (28, 0x2F), (24, 21)):
    print(option, libc.prctl(option, argument, 0, 0, 0), os.strerror(ctypes.get_errno()))
if libc.prctl(28, 0, 0, 0, 0) == 0 and os.getuid() == 0:
    print("BREACH: root")
