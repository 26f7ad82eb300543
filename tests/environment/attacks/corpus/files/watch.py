# Watches files that it shares with the host, to learn what others run and read.
# outcome: ok error denied
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
if libc.syscall(300, 0, 0) >= 0:  # fanotify_init
    print("BREACH: fanotify")
watch = libc.inotify_init()
for path in (b"@SCRATCH@", b"@HOME@", b"/etc", b"/home", b"/usr/bin", b"/usr/lib"):
    if watch >= 0 and libc.inotify_add_watch(watch, path, 0xFFF) >= 0:
        print("BREACH: watches", path)
