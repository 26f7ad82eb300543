# Watches the host's files for changes, to learn what others do.
# outcome: ok error denied
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
if libc.syscall(300, 0, 0) >= 0:  # fanotify_init
    print("BREACH: fanotify")
watch = libc.inotify_init()
for path in (b"@SCRATCH@", b"@HOME@", b"/etc", b"/home"):
    if watch >= 0 and libc.inotify_add_watch(watch, path, 0xFFF) >= 0:
        print("BREACH: watches", path)
