# Changes what is to become of dead children while the call that asks for it is being looked at.
# outcome: timeout error
# cpu: 0.5
# wall: 3
# never: evaded
import ctypes
import os
import threading
import time

libc = ctypes.CDLL(None)
wanted = (ctypes.c_uint64 * 4)(0, 0, 0, 0)
done = False


def flip():
    while not done:
        wanted[0], wanted[1] = 1, 2
        wanted[0], wanted[1] = 0, 0


threading.Thread(target=flip, daemon=True).start()
for _ in range(200):
    libc.syscall(13, 17, wanted, 0, 8)
done = True
time.sleep(0.05)
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
