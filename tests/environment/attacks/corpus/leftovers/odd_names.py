# Leaves names of odd bytes and kinds: sockets, pipes, links in rings, names that look like dots.
# outcome: ok error
import os
import socket

for name in (b"\xff\xfe", b"new\nline", b"-rf", b" ", b"...", b"x" * 255, b"\x1b[2J", b"*"):
    os.close(os.open(b"/tmp/" + name, os.O_CREAT))
os.symlink("ring", "/tmp/ring")
os.symlink("/usr", "/tmp/usr")
os.symlink("/tmp", "/tmp/tmp")
os.mkfifo("/tmp/pipe")
socket.socket(socket.AF_UNIX).bind("/tmp/socket")
os.mkdir("/tmp/sticky", 0o1777)
