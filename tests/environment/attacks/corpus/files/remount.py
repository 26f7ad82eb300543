# Makes the root writable, or puts something else in its place.
# outcome: ok error denied
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
MS_REMOUNT, MS_BIND, MS_MOVE = 32, 4096, 8192
for target in (b"/", b"/usr", b"/dev/null", b"/lib"):
    for flags in (MS_REMOUNT, MS_REMOUNT | MS_BIND):
        if libc.mount(None, target, None, flags, None) == 0:
            print("BREACH: remounted", target)
os.mkdir("/tmp/over")
for source, target, kind, flags in (
    (b"none", b"/tmp/over", b"tmpfs", 0),
    (b"proc", b"/tmp/over", b"proc", 0),
    (b"/tmp", b"/usr", None, MS_BIND),
    (b"/tmp", b"/usr", None, MS_MOVE),
    (b"overlay", b"/tmp/over", b"overlay", 0),
    (b"cgroup2", b"/tmp/over", b"cgroup2", 0),
    (b"sysfs", b"/tmp/over", b"sysfs", 0),
):
    if libc.mount(source, target, kind, flags, None) == 0:
        print("BREACH: mounted", kind)
for target in (b"/tmp", b"/", b"/usr"):
    if libc.umount2(target, 2) == 0:
        print("BREACH: unmounted", target)
