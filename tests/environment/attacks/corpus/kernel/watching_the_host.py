# Watches files of the host with dnotify, takes leases on them, and sends read-ahead hints to its disk.
# outcome: ok
# shows: value=0
import fcntl
import os

folder, file, taken = os.open("/usr/lib", os.O_RDONLY), os.open("/usr/bin/env", os.O_RDONLY), 0
for place, command, argument in (
    (folder, 1026, 0x80000001),
    (file, 1024, 0),
    (file, 1036, 1),
    (file, 10, 34),
    (file, 8, 1),
):
    try:
        fcntl.fcntl(place, command, argument)
        taken += 1
    except (OSError, OverflowError):
        pass
taken
