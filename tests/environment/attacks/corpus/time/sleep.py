# Sleeps on, and patches what would tell it to stop.
# outcome: timeout
# wall: 0.4
import signal
import time

signal.alarm(0)
signal.setitimer(signal.ITIMER_REAL, 0)
while True:
    time.sleep(1000)
