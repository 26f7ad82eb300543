# Sets the clocks of the machine.
# outcome: ok
import ctypes
import time

libc = ctypes.CDLL(None, use_errno=True)
for clock in (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC, 11):
    try:
        time.clock_settime(clock, time.clock_gettime(clock))
        print("BREACH: set clock", clock)
    except OSError as error:
        print(error.strerror)
now = (ctypes.c_long * 2)(int(time.time()), 0)
if libc.settimeofday(now, None) == 0:
    print("BREACH: settimeofday")
change = (ctypes.c_long * 32)()
change[0] = 0x1  # ADJ_OFFSET of nothing
if libc.adjtimex(change) >= 0 and libc.syscall(305, 0, change) == 0:
    print("BREACH: adjtimex")
