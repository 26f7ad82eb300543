# Makes namespaces of its own, in which it would be root.
# outcome: ok error denied
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
KINDS = {
    "user": 0x10000000,
    "mount": 0x20000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "ipc": 0x8000000,
}
KINDS |= {"uts": 0x4000000, "cgroup": 0x2000000, "time": 0x80}
for name, kind in KINDS.items():
    for flags in (kind, kind | KINDS["user"]):
        if libc.unshare(flags) == 0:
            print("BREACH: a namespace of its own:", name)
        child = libc.syscall(56, (flags & ~0xFF) | 17, 0, 0, 0, 0) if flags & ~0xFF else -1
        if child == 0:
            os._exit(0)
        if child > 0:
            print("BREACH: a child in a namespace of its own:", name)
        arguments = (ctypes.c_uint64 * 11)(flags, 0, 0, 0, 17)
        child = libc.syscall(435, arguments, 88)
        if child == 0:
            os._exit(0)
        if child > 0:
            print("BREACH: a child by clone3:", name)
