# Opens files by their handles, which pass by every folder on the way.
# outcome: ok error denied
import ctypes
import platform

libc = ctypes.CDLL(None, use_errno=True)
if platform.machine() == "x86_64":
    handle = ctypes.create_string_buffer(b"\x08\0\0\0\x01\0\0\0\x02\0\0\0\0\0\0\0", 136)
    mount = libc.open(b"/", 0)
    for number in range(1, 200):
        handle[8:12] = number.to_bytes(4, "little")
        if libc.syscall(304, mount, handle, 0) >= 0:
            print("BREACH: open_by_handle_at", number)
            break
    else:
        print("refused", ctypes.get_errno())
