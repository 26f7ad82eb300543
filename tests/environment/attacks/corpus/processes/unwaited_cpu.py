# Burns CPU time in children that it does not wait for.
# outcome: timeout
# wall: 200
# cpu: 0.4
import os
import time

for _ in range(3):
    if os.fork() == 0:
        while True:
            pass
time.sleep(100)
