# Leaves files that refuse to be deleted, and folders that somebody is in.
# outcome: ok error
import fcntl
import os
import struct

os.mkdir("/tmp/folder")
for path in ("/tmp/file", "/tmp/folder", "/tmp"):
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT if path.endswith("file") else os.O_RDONLY)
    for flags in (0x10, 0x20, 0x30):
        try:
            fcntl.ioctl(descriptor, 0x40086602, struct.pack("l", flags))
        except OSError as error:
            print(error.strerror)
os.chdir("/tmp/folder")
if os.fork() == 0:
    os.setsid()
    while True:
        os.pwrite(os.open("/tmp/folder/again", os.O_CREAT | os.O_RDWR), b"x", 0)
