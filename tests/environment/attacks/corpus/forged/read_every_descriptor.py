# Reads from every descriptor what may be meant for somebody else.
# outcome: ok error timeout
# wall: 1
import os
import socket

for descriptor in range(3, 256):
    try:
        os.set_blocking(descriptor, False)
        data = os.read(descriptor, 65536)
        print(descriptor, len(data))
        if b"CANARY-" in data:
            print("BREACH: read", data[:99])
    except OSError:
        pass
    try:
        message = socket.socket(fileno=os.dup(descriptor)).recvmsg(4096, 4096, socket.MSG_DONTWAIT)
        print("BREACH: a message", message) if message[1] else None
    except OSError:
        pass
