# Calls with a history of holes in the kernel, that no snippet needs.
# outcome: ok error denied
import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
page = ctypes.create_string_buffer(4096)
CALLS = {
    "add_key": (248, b"user", b"mark", b"x", 1, -3),
    "bpf": (321, 0, page, 128),
    "io_uring_setup": (425, 8, page),
    "keyctl": (250, 0, -3, 1),
    "kcmp": (312, os.getpid(), os.getpid(), 0, 0, 1),
    "perf_event_open": (298, page, 0, -1, -1, 0),
    "request_key": (249, b"user", b"mark", 0, -3),
    "userfaultfd": (323, 1),
    "fsopen": (430, b"tmpfs", 0),
    "open_tree": (428, -100, b"/", 0),
    "move_pages": (279, 0, 1, page, 0, page, 0),
}
if platform.machine() == "x86_64":
    for name, arguments in CALLS.items():
        if libc.syscall(*arguments) != -1:
            print("BREACH:", name)
        else:
            print(name, os.strerror(ctypes.get_errno()))
