# Sends its descriptors to a process that outlives it, which writes when the next call runs.
# outcome: ok error
import os
import socket
import time

ours, theirs = socket.socketpair()
if os.fork() == 0:
    os.setsid()
    descriptors = socket.recv_fds(theirs, 10, 8)[1]
    time.sleep(0.3)
    for descriptor in descriptors:
        os.write(descriptor, b"forged in the next call\n" * 100)
    time.sleep(60)
socket.send_fds(ours, [b"x"], [1, 2, 3])
print("mine")
# %%
# outcome: ok
# copies: 2
# never: forged
import time

time.sleep(0.5)
print("mine")
