# Traces processes: its parent, its own children, the host's.
# outcome: ok error denied
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
for pid in (os.getppid(), int("@HOST_PID@"), int("@VICTIM_PID@")):
    for request in (16, 0x4206):
        if libc.ptrace(request, pid, 0, 0) == 0:
            print("BREACH: traces", pid)
print(os.strerror(ctypes.get_errno()))
