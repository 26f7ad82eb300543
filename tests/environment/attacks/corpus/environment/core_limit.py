# Lowers the limit of its core file to nothing, which stops no dump where the host hands dumps to a program of its own.
# outcome: ok
# shows: value=\(1, 1\)
import ctypes
import resource

libc = ctypes.CDLL(None)
nothing = (ctypes.c_uint64 * 2)(0, 1)
for lower in (
    lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 1)),
    lambda: resource.prlimit(0, resource.RLIMIT_CORE, (0, 1)),
    lambda: libc.syscall(160, 4, nothing),
    lambda: libc.syscall(302, 0, 4, nothing, 0),
):
    try:
        lower()
    except (OSError, ValueError):
        pass
resource.getrlimit(resource.RLIMIT_CORE)
