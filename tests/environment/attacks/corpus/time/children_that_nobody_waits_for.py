# Burns CPU time in short children whose death is ignored: nobody is told what they used.
# outcome: timeout error ok
# cpu: 0.5
# wall: 3
# never: evaded
import os
import signal
import time

for wanted in (signal.SIG_IGN,):
    try:
        signal.signal(signal.SIGCHLD, wanted)
    except OSError:
        pass
end, burnt = time.monotonic() + 2.0, 0
while time.monotonic() < end:
    if os.fork() == 0:
        stop = time.process_time() + 0.02
        while time.process_time() < stop:
            pass
        os._exit(0)
    time.sleep(0.021)
    burnt += 1
print("evaded" if burnt > 60 else burnt)
