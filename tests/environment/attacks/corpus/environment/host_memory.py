# Reads the memory of the process that started it, and of the one that runs the training.
# outcome: ok error denied
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(64)


class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


for pid in (os.getppid(), int("@HOST_PID@"), int("@VICTIM_PID@")):
    for path in (f"/proc/{pid}/mem", f"/proc/{pid}/maps"):
        try:
            open(path, "rb").close()
            print("BREACH: opened", path)
        except OSError as error:
            print(error.strerror)
    here, there = Vector(ctypes.addressof(buffer), 64), Vector(ctypes.addressof(buffer), 64)
    if libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) >= 0:
        print("BREACH: process_vm_readv", pid)
    if libc.process_vm_writev(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) >= 0:
        print("BREACH: process_vm_writev", pid)
