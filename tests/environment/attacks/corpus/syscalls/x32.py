# Calls with the bit of the x32 table, which a filter by number may miss.
# outcome: ok error denied
import ctypes
import platform

libc = ctypes.CDLL(None, use_errno=True)
X32 = 0x40000000
if platform.machine() == "x86_64":
    for name, number, *arguments in (
        ("unshare", 272, 0x10000000),
        ("io_uring_setup", 425, 8, ctypes.create_string_buffer(128)),
        ("userfaultfd", 323, 1),
        ("getpid", 39),
    ):
        for high in (X32, X32 | 1 << 32, 1 << 31):
            if libc.syscall(ctypes.c_long(number | high), *arguments) >= 0:
                print("BREACH:", name)
