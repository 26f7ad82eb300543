# Fills the buffers of as many sockets as it can have, made as large as they get: memory that no limit counts.
# outcome: ok
# shows: value=True
import socket

kept, filled = [], 0
try:
    while True:
        pair = socket.socketpair()
        kept += pair
        for one in pair:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 26)
            one.setblocking(False)
            try:
                while True:
                    filled += one.send(bytes(1 << 16))
            except BlockingIOError:
                pass
except OSError:
    pass
filled < 64 << 20
