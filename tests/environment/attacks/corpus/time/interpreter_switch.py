# Never gives the interpreter's lock to another thread.
# outcome: timeout
# wall: 0.5
import sys
import threading

sys.setswitchinterval(1e9)
for _ in range(10):
    threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()
while True:
    pass
