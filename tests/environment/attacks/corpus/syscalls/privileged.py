# Calls that only the machine's owner should make, with arguments that would do no harm.
# outcome: ok error denied
import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
CALLS = {
    "acct": (163, 0),
    "delete_module": (176, b"no_such_module", 0x800),
    "init_module": (175, b"", 0, b""),
    "finit_module": (313, -1, b"", 0),
    "iopl": (172, 3),
    "ioperm": (173, 0x80, 1, 1),
    "kexec_load": (246, 0, 0, 0, 0),
    "pivot_root": (155, b"/tmp", b"/tmp"),
    "quotactl": (179, 0x80000100, 0, 0, 0),
    "reboot": (169, 0xFEE1DEAD, 0x28121969, 0, 0),
    "setdomainname": (171, b"x", 1),
    "sethostname": (170, b"x", 1),
    "swapoff": (168, b"/tmp/none"),
    "swapon": (167, b"/tmp/none", 0),
    "syslog": (103, 3, 0, 0),
    "vhangup": (153,),
}
if platform.machine() == "x86_64":
    for name, arguments in CALLS.items():
        ctypes.set_errno(0)
        if libc.syscall(*arguments) != -1:
            print("BREACH:", name)
        else:
            print(name, os.strerror(ctypes.get_errno()))
