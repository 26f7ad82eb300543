# A child stops itself and the one that waits for it.
# outcome: timeout ok
# wall: 0.5
import os
import signal

if (child := os.fork()) == 0:
    os.kill(os.getppid(), signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSTOP)
os.waitpid(child, 0)
