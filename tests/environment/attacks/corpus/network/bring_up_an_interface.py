# Switches its own loopback interface on, or makes a tunnel.
# outcome: ok
import fcntl
import socket
import struct

try:
    control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    fcntl.ioctl(control, 0x8914, struct.pack("16sh", b"lo", 0x49))  # SIOCSIFFLAGS: up, running
    print("BREACH: loopback is up")
except OSError as error:
    print(error)
try:
    print(open("/dev/net/tun"))
    print("BREACH: a tunnel")
except OSError as error:
    print(error)
