# Listens on a port and an abstract name, and leaves a process behind that would answer the next call.
# outcome: ok
import os
import socket

if os.fork() == 0:
    os.setsid()
    server = socket.socket(socket.AF_UNIX)
    server.bind("\0@MARK@")
    server.listen()
    while True:
        server.accept()[0].send(b"from the earlier call")
# %%
# outcome: ok
# copies: 2
import socket

try:
    client = socket.socket(socket.AF_UNIX)
    client.connect("\0@MARK@")
    print("BREACH:", client.recv(99))
except OSError as error:
    print(error)
