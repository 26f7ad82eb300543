# A storm of timers.
# outcome: ok timeout error
# wall: 0.6
import ctypes
import signal
import time

libc = ctypes.CDLL(None, use_errno=True)
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 1e-6, 1e-6)
timer = ctypes.c_void_p()
count = 0
while libc.timer_create(1, None, ctypes.byref(timer)) == 0 and count < 50_000:
    count += 1
end = time.monotonic() + 0.2
while time.monotonic() < end:
    pass
print("timers", count)
