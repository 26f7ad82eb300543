# Has a timer wake it between the calls, or kill a child whose end then wakes its parent.
# outcome: ok
# session: a
import ctypes
import os
import struct
import threading
import time

libc = ctypes.CDLL(None)
beats = []


def remind(signal, nanoseconds):
    timer = ctypes.c_void_p()
    if libc.timer_create(1, struct.pack("Pii48x", 0, signal, 0), ctypes.byref(timer)) == 0:
        libc.timer_settime(timer, 0, struct.pack("qqqq", 0, nanoseconds, 0, nanoseconds), None)


def beat():
    while True:
        beats.append(time.monotonic())
        time.sleep(0.02)


if os.uname().machine == "x86_64" and libc.syscall(56, 18, 0, 0, 0, 0) == 0:
    remind(9, 950_000_000)
    time.sleep(600)
remind(18, 700_000_000)
threading.Thread(target=beat, daemon=True).start()
# %%
# outcome: ok
# session: a
# wait: 3
ran = [each for each in beats if 0.9 < each - beats[0] < 2.7]
print("BREACH: ran while it stood idle" if ran else "stopped", len(beats))
