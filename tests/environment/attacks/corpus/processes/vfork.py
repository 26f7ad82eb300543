# A child that borrows its parent's memory and never gives it back.
# outcome: timeout error
# wall: 0.5
import ctypes

libc = ctypes.PyDLL(None)
if libc.syscall(56, 0x4000 | 0x100 | 17, 0, 0, 0, 0) == 0:
    while True:
        libc.pause()
