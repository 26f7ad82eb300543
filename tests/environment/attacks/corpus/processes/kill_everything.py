# Kills whatever it may: process 1, all, its group, its parent, the host.
# outcome: ok error out_of_memory infrastructure
import os
import signal

for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    for pid in (os.getppid(), int("@HOST_PID@"), int("@VICTIM_PID@"), -1, 1, -int("@VICTIM_PID@")):
        try:
            os.kill(pid, number)
        except (OSError, KeyboardInterrupt):
            pass
