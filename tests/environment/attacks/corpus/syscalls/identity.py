# Becomes another user, or takes capabilities.
# outcome: ok error denied
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
for name in ("setuid", "setgid", "setfsuid", "setfsgid"):
    for number in (0, 65534, 1):
        getattr(libc, name)(number)
for name, arguments in (
    ("setgroups", ([0],)),
    ("setresuid", (0, 0, 0)),
    ("setreuid", (0, 0)),
    ("initgroups", ("root", 0)),
):
    try:
        getattr(os, name)(*arguments)
        print("BREACH:", name)
    except OSError:
        pass
header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6)
if libc.capset(header, data) == 0:
    print("BREACH: capabilities")
libc.capget(header, data)
if os.getuid() == 0 or any(data):
    print("BREACH: user", os.getuid(), "capabilities", list(data))
