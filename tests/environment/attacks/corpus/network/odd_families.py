# Asks for sockets that no network namespace holds, or that see all packets.
# outcome: ok
import socket

FAMILIES = {
    "packet": (17, 3, 0x300),
    "raw": (2, 3, 1),
    "netlink audit": (16, 3, 9),
    "vsock": (40, 1, 0),
    "alg": (38, 5, 0),
}
FAMILIES |= {
    "bluetooth": (31, 3, 1),
    "can": (29, 3, 1),
    "tipc": (30, 1, 0),
    "xdp": (44, 3, 0),
    "kcm": (41, 5, 0),
}
for name, arguments in FAMILIES.items():
    try:
        socket.socket(*arguments)
        print("BREACH: a socket of", name)
    except OSError as error:
        print(name, error.strerror)
