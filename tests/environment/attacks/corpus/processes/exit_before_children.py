# Ends at once with success, with children still at work on its streams.
# outcome: ok
import os
import time

for _ in range(5):
    if os.fork() == 0:
        while True:
            os.write(1, b"after the end\n" * 50)
            time.sleep(0.01)
os._exit(0)
