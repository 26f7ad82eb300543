# Keeps its data in socket buffers, of many processes.
# outcome: ok error out_of_memory timeout
# memory: 64
# wall: 5
# cpu: 8
import os
import socket
import time

for _ in range(24):
    try:
        child = os.fork()
    except OSError:
        break
    if child == 0:
        kept = []
        try:
            while True:
                pair = socket.socketpair()
                kept.append(pair)
                for end in pair:
                    end.setblocking(False)
                    try:
                        while True:
                            end.send(bytes(2**15))
                    except BlockingIOError:
                        pass
        except OSError:
            pass
        time.sleep(0.3)
        os._exit(0)
time.sleep(0.8)
