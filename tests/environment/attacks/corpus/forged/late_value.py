# Lets a child write a value after the end.
# outcome: ok error
# never: "late"
import os
import time

if os.fork() == 0:
    os.setsid()
    time.sleep(0.05)
    while True:
        for descriptor in range(1, 16):
            try:
                os.pwrite(descriptor, b'"late"', 0)
            except OSError:
                pass
"in time"
