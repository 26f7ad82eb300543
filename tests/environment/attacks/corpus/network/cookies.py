# Reads numbers that the kernel gives to sockets from one count for the whole machine.
# outcome: ok
import socket

for pair in (socket.socketpair(), (socket.socket(),)):
    for option in (57, 71):
        try:
            print("BREACH: cookie", option, pair[0].getsockopt(socket.SOL_SOCKET, option, 8))
        except OSError:
            pass
