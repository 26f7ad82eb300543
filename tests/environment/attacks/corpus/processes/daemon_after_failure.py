# Fails, while a swarm of daemons re-creates itself as fast as it is killed.
# outcome: error timeout
# wall: 1
import os
import time

for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                if os.fork():
                    os._exit(0)
                os.setsid()
            except OSError:
                pass
time.sleep(0.1)
raise ValueError("failed")
