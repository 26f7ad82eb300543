# Connects to an abstract Unix socket of the host, as a stream and by datagrams.
# outcome: ok
import socket

for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
    try:
        connection = socket.socket(socket.AF_UNIX, kind)
        connection.connect("\0@ABSTRACT@")
        print("BREACH: connected")
    except OSError as error:
        print(error)
