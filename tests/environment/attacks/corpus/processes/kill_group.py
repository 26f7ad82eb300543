# Kills its own process group, in case the fork server is in it.
# outcome: ok error out_of_memory
import os
import signal

if os.fork() == 0:
    os.killpg(0, signal.SIGKILL)
os.kill(0, signal.SIGKILL)
print("alive")
