# Connects to a TCP listener on the host's loopback, by IPv6 and by mapped addresses.
# outcome: ok
import socket

for family, address in (
    (socket.AF_INET6, "::1"),
    (socket.AF_INET6, "::ffff:127.0.0.1"),
    (socket.AF_INET, "0.0.0.0"),
):
    try:
        connection = socket.socket(family)
        connection.settimeout(1)
        connection.connect((address, int("@TCP_PORT@")))
        print("BREACH: connected to", address)
    except OSError as error:
        print(address, error)
