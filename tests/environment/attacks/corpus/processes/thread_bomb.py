# Starts threads until it is stopped.
# outcome: ok error out_of_memory timeout
# wall: 1
import threading
import time

count = 0
try:
    while count < 5000:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        count += 1
    print("BREACH: 5000 threads")
except (RuntimeError, MemoryError):
    print("held at", count)
