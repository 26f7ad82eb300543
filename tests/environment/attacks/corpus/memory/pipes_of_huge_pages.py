# Pins whole huge pages by pipes that hold a part of each: memory of no process.
# outcome: ok
# shows: value=0
import ctypes
import mmap
import os

libc, held = ctypes.CDLL(None), 0


class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


for _ in range(8):
    memory = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(14)
    memory[:] = b"x" * len(memory)
    reader, writer = os.pipe()
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    held += libc.vmsplice(writer, ctypes.byref(Part(start, 4096)), 1, 0) > 0
held
