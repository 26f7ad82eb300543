# Takes what the kernel grants a user of timers and of signals that wait: as an ordinary user, the host's own share.
# outcome: ok
# never: BREACH
import ctypes
import os
import signal

libc, timer, taken = ctypes.CDLL(None), ctypes.c_void_p(), 0
signal.pthread_sigmask(signal.SIG_BLOCK, {40})
information = ctypes.create_string_buffer(128)
ctypes.c_int.from_buffer(information, 8).value = -1
number = 129 if os.uname().machine == "x86_64" else 138
while taken < 20_000 and libc.timer_create(1, None, ctypes.byref(timer)) == 0:
    taken += 1
while taken < 20_000 and libc.syscall(number, os.getpid(), 40, information) == 0:
    taken += 1
print("BREACH" if taken > 2000 else "held", taken)
