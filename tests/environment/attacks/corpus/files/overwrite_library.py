# Changes files that later calls will import or run.
# outcome: ok
import json
import os
import sys

for path in (
    json.__file__,
    os.__file__,
    sys.executable or "/usr/bin/env",
    "/usr/bin/env",
    "/bin/sh",
    "/lib64/ld-linux-x86-64.so.2",
):
    for flags in (os.O_WRONLY | os.O_APPEND, os.O_RDWR):
        try:
            os.close(os.open(path, flags))
            print("BREACH: opened for writing:", path)
        except OSError as error:
            print(path, error.strerror)
    for change in (
        os.unlink,
        lambda path: os.rename(path, path + "x"),
        lambda path: os.truncate(path, 0),
    ):
        try:
            change(path)
            print("BREACH: changed", path)
        except OSError:
            pass
