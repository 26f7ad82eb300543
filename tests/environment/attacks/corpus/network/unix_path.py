# Connects to a Unix socket of the host by its path.
# outcome: error
import socket

connection = socket.socket(socket.AF_UNIX)
connection.connect("@UNIX_PATH@")
print("BREACH: connected")
