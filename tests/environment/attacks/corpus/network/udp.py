# Sends a datagram to a listener on the host's loopback.
# outcome: ok
import socket

try:
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for _ in range(3):
        sender.sendto(b"hello", ("127.0.0.1", int("@UDP_PORT@")))
    print("sent")
except OSError as error:
    print(error)
