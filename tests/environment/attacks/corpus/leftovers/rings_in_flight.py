# Leaves sockets that lie in each other's buffers when it ends, so that the next call has none left.
# outcome: ok
import array
import socket

for _ in range(40):
    try:
        pair = socket.socketpair()
        for one, other in (pair, pair[::-1]):
            one.sendmsg(
                [b"x"],
                [
                    (
                        socket.SOL_SOCKET,
                        socket.SCM_RIGHTS,
                        array.array("i", [one.fileno(), other.fileno()]),
                    )
                ],
            )
    except OSError:
        break
# %%
# outcome: ok
# wait: 0.5
# shows: value=True
import socket

made = []
try:
    for _ in range(40):
        made.append(socket.socketpair())
except OSError:
    pass
len(made) > 20
