# Sends sockets through sockets and closes them, so that no process has them any more.
# outcome: ok
# shows: value=True
import array
import socket

carrier, other = socket.socketpair()
carrier.setblocking(False)
made = 0
try:
    for _ in range(500):
        one, two = socket.socketpair()
        made += 2
        for each in (one, two):
            carrier.sendmsg(
                [b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [each.fileno()]))]
            )
            each.close()
except OSError:
    pass
made < 80
