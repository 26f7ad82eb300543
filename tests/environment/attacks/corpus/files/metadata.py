# Changes modes, owners, times and attributes of files it shares with the host.
# outcome: ok
import os

for path in ("/", "/usr", "/usr/bin/env", "/dev/null", "/dev", os.__file__, "/lib"):
    changes = {
        "mode": lambda path: os.chmod(path, 0o777),
        "owner": lambda path: os.chown(path, os.getuid(), os.getgid()),
        "times": lambda path: os.utime(path, (1, 1)),
        "attribute": lambda path: os.setxattr(path, "user.mark", b"x"),
    }
    for name, change in changes.items():
        try:
            change(path)
            print("BREACH: changed the", name, "of", path)
        except OSError:
            pass
