# Connects to a TCP listener on the host's loopback.
# outcome: error
import socket

connection = socket.create_connection(("127.0.0.1", int("@TCP_PORT@")), timeout=1)
print("BREACH: connected")
connection.sendall(b"hello")
