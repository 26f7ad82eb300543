# Walks up the frames and through all objects to what runs it: sockets, queues, buffers.
# outcome: ok error
import gc
import socket
import sys

frame = sys._getframe()
while frame is not None:
    for name, value in {**frame.f_globals, **frame.f_locals}.items():
        if isinstance(value, (bytes, str)) and "CANA" + "RY-" in str(value):
            print("BREACH: in a frame", name)
    frame = frame.f_back
for thing in gc.get_objects():
    if isinstance(thing, socket.socket) and thing.fileno() >= 0:
        thing.setblocking(False)
        try:
            thing.send(bytes(64))
        except OSError:
            pass
print(sorted(name for name in sys.modules if "sandbox" in name or "zygote" in name))
