# Makes a process that shares its table of descriptors, not its memory: each could put files under the other's numbers.
# outcome: ok error
# never: BREACH
import ctypes
import os
import time

if os.uname().machine == "x86_64":
    shared = os.open("/usr/bin/env", os.O_RDONLY)
    number = os.open("/tmp/own", os.O_CREAT | os.O_RDWR)
    if ctypes.CDLL(None).syscall(56, 0x400 | 17, 0, 0, 0, 0) == 0:
        os.dup2(shared, number)
        os._exit(0)
    time.sleep(0.2)
    print("BREACH" if os.fstat(number).st_ino == os.fstat(shared).st_ino else "its own")
