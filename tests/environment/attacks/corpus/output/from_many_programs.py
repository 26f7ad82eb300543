# Lets programs write that outlive it.
# outcome: output_limit ok
import os
import time

for _ in range(4):
    if os.fork() == 0:
        os.execvp("yes", ["yes"])
time.sleep(0.2)
