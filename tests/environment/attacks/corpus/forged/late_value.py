# Lets a child write a value after the end.
# outcome: ok error
# never: "late"
import os
import time

parent = os.getpid()
if os.fork() == 0:
    os.setsid()
    while os.getppid() == parent:
        time.sleep(0.005)
    while True:
        for descriptor in range(1, 16):
            try:
                os.pwrite(descriptor, b'"late"', 0)
            except OSError:
                pass
"in time"
