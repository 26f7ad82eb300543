# Doubles until it is stopped.
# outcome: timeout ok error out_of_memory
# wall: 0.7
import os

while True:
    try:
        os.fork()
    except OSError:
        pass
