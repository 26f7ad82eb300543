# Sets options of sockets for which the kernel keeps memory, loads programs or spends time.
# outcome: ok
import socket
import struct

one, two = socket.socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
group = socket.inet_aton("224.0.0.251") + socket.inet_aton("0.0.0.0")
for each, level, option, value in (
    (one, socket.IPPROTO_TCP, 13, b"vegas"),
    (one, socket.IPPROTO_TCP, 31, b"tls"),
    (one, socket.SOL_SOCKET, 60, struct.pack("i", 1)),
    (one, socket.SOL_SOCKET, 46, struct.pack("i", 1000)),
    (two, socket.IPPROTO_IP, 35, group),
    (two, socket.IPPROTO_IP, 41, bytes(16)),
    (two, socket.IPPROTO_IP, 4, b"\x07\x03\x04"),
    (two, 255, 1, bytes(4)),
):
    try:
        each.setsockopt(level, option, value)
    except OSError:
        continue
    print("BREACH: option", level, option)
for option in (socket.SO_REUSEADDR, socket.SO_KEEPALIVE):
    one.setsockopt(socket.SOL_SOCKET, option, 1)
one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
