# Looks for variables: in os, in the C library, in the stack above it.
# outcome: ok
import ctypes
import os

libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
environ = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ")
print(dict(os.environ), libc.getenv(b"HRM_ATTACK_SECRET"))
i = 0
while environ and environ[i]:
    print(environ[i])
    i += 1
for pid in ("self", 1, os.getppid(), "@HOST_PID@"):
    try:
        print(pid, open(f"/proc/{pid}/environ").read())
    except OSError as error:
        print(pid, error.strerror)
if "HOME" in os.environ or os.environ.get("HRM_ATTACK_SECRET"):
    print("BREACH: variables of the host")
