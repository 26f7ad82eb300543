# Changes the way the kernel treats it: no random addresses, executable data.
# outcome: ok error denied
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
if libc.personality(0x0040000 | 0x0400000) != -1:
    print("BREACH: personality")
print(libc.prctl(29, 0, 0, 0, 0))
