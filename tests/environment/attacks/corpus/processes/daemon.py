# Leaves a daemon behind: twice forked, a session of its own, all signals ignored.
# outcome: ok
# shows: done
import os
import signal
import time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(1, 65):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        os.closerange(0, 256)
        time.sleep(120)
    os._exit(0)
time.sleep(0.05)
print("done")
