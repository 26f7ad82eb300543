# Gives itself more of the machine: priorities, real-time scheduling, memory locks.
# outcome: ok error
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
attempts = {
    "nice": lambda: os.nice(-10),
    "priority": lambda: os.setpriority(os.PRIO_PGRP, 0, -5),
    "fifo": lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)),
    "round robin": lambda: os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1)),
}
for name, attempt in attempts.items():
    try:
        attempt()
        print("BREACH:", name)
    except OSError as error:
        print(name, error.strerror)
if libc.syscall(251, 1, 0, (1 << 13) | 4) == 0:  # ioprio_set: real time
    print("BREACH: real-time io")
