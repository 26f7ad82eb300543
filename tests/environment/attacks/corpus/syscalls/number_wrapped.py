# Numbers of calls with bits beyond the 32 that a filter looks at, and numbers that do not exist.
# outcome: ok error denied
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
for number in (272 | 1 << 32, 425 | 1 << 32, 323 | 1 << 40):
    if (
        libc.syscall(
            ctypes.c_long(number), ctypes.c_long(0x10000000), ctypes.create_string_buffer(128)
        )
        >= 0
    ):
        print("BREACH:", number)
for number in (-1, 500, 1000, 2**31 - 1):
    libc.syscall(ctypes.c_long(number), 0, 0, 0)
