# Burns the CPU in children, which count for it.
# outcome: timeout
# wall: 200
# cpu: 0.4
import os

for _ in range(4):
    if os.fork() == 0:
        while True:
            pass
os.wait()
