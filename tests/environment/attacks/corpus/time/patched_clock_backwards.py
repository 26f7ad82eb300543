# Makes its own clocks run, so that it seems to have waited, or that a limit seems far.
# outcome: timeout
# seconds: 0.4
# wall: 0.4
import time

time.monotonic = lambda: -1e9
time.sleep = lambda seconds: None
while True:
    time.sleep(1)
