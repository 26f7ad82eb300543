# So many maps in so many processes that looking at them takes longer than the call may.
# outcome: timeout out_of_memory error
# wall: 1.5
# cpu: 8
# memory: 300
import ctypes
import os

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
for number in range(60000):
    libc.mmap(None, 4096, 1 + number % 2 * 2, 0x8022, -1, 0)
for _ in range(10):
    if os.fork() == 0:
        while True:
            pass
while True:
    pass
