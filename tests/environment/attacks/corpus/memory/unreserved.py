# Maps far more than there is, without reserving it, in every way that a map can be asked for.
# outcome: ok error out_of_memory
# memory: 96
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
for flags in (0x22, 0x4022, 0x40022, 0x122, 0x8022, 0x21):
    if libc.mmap(None, 1 << 36, 3, flags, -1, 0) not in (None, ctypes.c_void_p(-1).value):
        print("BREACH: 64 GiB with flags", hex(flags))
