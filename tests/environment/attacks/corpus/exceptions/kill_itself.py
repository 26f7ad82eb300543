# Kills itself from a child, from a thread, by hand.
# outcome: ok error
import os
import signal

if os.fork() == 0:
    os.kill(1, signal.SIGKILL)
    os._exit(0)
os.wait()
os.kill(os.getpid(), signal.SIGKILL)
