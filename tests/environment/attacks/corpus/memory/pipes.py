# Keeps its data in pipes and sockets, which are the kernel's memory.
# outcome: ok error out_of_memory
# memory: 64
import fcntl
import os
import socket

held, kept = 0, []
try:
    while True:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        try:
            fcntl.fcntl(writer, 1031, 2**20)
        except OSError:
            pass
        kept += [reader, writer]
        try:
            while True:
                held += os.write(writer, bytes(2**16))
        except BlockingIOError:
            pass
except OSError as error:
    print(error.strerror, held >> 20)
if held > 256 * 2**20:
    print("BREACH: the kernel holds", held >> 20, "MiB")
