# Two episodes that run side by side talk to each other by an abstract socket.
# outcome: ok
# session: a
import socket
import threading

server = socket.socket(socket.AF_UNIX)
server.bind("\0@MARK@-sessions")
server.listen()


def answer():
    while True:
        server.accept()[0].send(b"from the other episode")


threading.Thread(target=answer, daemon=True).start()
# %%
# outcome: ok
# session: b
import socket

try:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(0.5)
    client.connect("\0@MARK@-sessions")
    print("BREACH:", client.recv(99))
except OSError as error:
    print(error)
# %%
# outcome: ok
# copies: 2
import socket

try:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(0.5)
    client.connect("\0@MARK@-sessions")
    print("BREACH:", client.recv(99))
except OSError as error:
    print(error)
