# Asks for a lock on a file of its own, and has another thread put a file of the system in its place meanwhile.
# outcome: ok timeout
# never: BREACH
import fcntl
import os
import threading
import time

own, shared = os.open("/tmp/own", os.O_CREAT | os.O_RDWR), os.open("/usr/bin/env", os.O_RDONLY)
target, taken, done = os.dup(own), 0, False


def swap():
    while not done:
        os.dup2(shared, target)
        os.dup2(own, target)


swapper = threading.Thread(target=swap)
swapper.start()
for _ in range(300):
    for lock in (fcntl.flock, fcntl.lockf):
        try:
            lock(target, fcntl.LOCK_SH | fcntl.LOCK_NB)
            taken += 1
        except OSError:
            pass
done = True
swapper.join()
print("BREACH" if taken else "none")
