# Takes descriptors out of other processes.
# outcome: ok error denied
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
for pid in (os.getppid(), int("@HOST_PID@"), int("@VICTIM_PID@")):
    descriptor = libc.syscall(434, pid, 0)
    if descriptor >= 0 and pid > 0:
        print("BREACH: pidfd_open", pid)
for descriptor in range(1024):
    for wanted in range(4):
        taken = libc.syscall(438, descriptor, wanted, 0)
        if taken >= 0:
            print("BREACH: took", wanted, "by", descriptor)
    if libc.syscall(424, descriptor, 9, 0, 0) == 0:
        print("BREACH: killed by", descriptor)
