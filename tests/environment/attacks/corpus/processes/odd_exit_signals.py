# Makes children whose end tells the parent by odd signals, and that are told by odd signals of its end.
# outcome: ok error
# wall: 5
import ctypes
import os
import signal
import time

libc = ctypes.CDLL(None)
signal.signal(signal.SIGTERM, lambda *_: None)
if os.uname().machine == "x86_64":
    for end in (0, signal.SIGCONT, signal.SIGTERM, signal.SIGURG, 64):
        if libc.syscall(56, int(end), 0, 0, 0, 0) == 0:
            for told in (signal.SIGCONT, signal.SIGSTOP, 64):
                if os.fork() == 0:
                    libc.prctl(1, int(told), 0, 0, 0)
                    os.setsid()
                    time.sleep(60)
                    os._exit(0)
            os._exit(0)
time.sleep(0.3)
