# Replaces the filter that holds it by its own, which allows everything.
# outcome: ok error denied
import ctypes
import struct

libc = ctypes.CDLL(None, use_errno=True)
program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))


class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_void_p)]


filter_ = Filter(1, ctypes.addressof(program))
print(libc.prctl(22, 2, ctypes.byref(filter_), 0, 0))
listener = libc.syscall(317, 1, 8, ctypes.byref(filter_))
print(listener)
if libc.unshare(0x10000000) == 0:
    print("BREACH: the filter is gone")
