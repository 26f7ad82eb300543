# Stops itself, from within and by a child.
# outcome: ok timeout error
# wall: 0.5
import os
import signal

os.kill(os.getpid(), signal.SIGSTOP)
if os.fork() == 0:
    os.kill(1, signal.SIGSTOP)
    os.kill(os.getppid(), signal.SIGTSTP)
    os._exit(0)
os.wait()
