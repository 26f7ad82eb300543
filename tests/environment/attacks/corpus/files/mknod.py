# Makes device files of its own.
# outcome: ok
import os
import stat

for name, kind, device in (
    ("mem", stat.S_IFCHR, (1, 1)),
    ("kmsg", stat.S_IFCHR, (1, 11)),
    ("disk", stat.S_IFBLK, (254, 0)),
    ("sda", stat.S_IFBLK, (8, 0)),
    ("tty", stat.S_IFCHR, (5, 0)),
):
    try:
        os.mknod(f"/tmp/{name}", kind | 0o666, os.makedev(*device))
        print("BREACH: made", name)
        print("BREACH: opened", os.open(f"/tmp/{name}", os.O_RDONLY))
    except OSError as error:
        print(name, error.strerror)
