# Counts how many processes it may have.
# outcome: ok
# never: [0-9]{4}
import os
import time

count = 0
try:
    while count < 2000:
        if os.fork() == 0:
            time.sleep(30)
        count += 1
except OSError as error:
    print("held at", count, error.strerror)
if count > 200:
    print("BREACH: too many")
