# Makes new files as fast as they can be deleted, from processes that outlive the call.
# outcome: ok
import os

for number in range(6):
    if os.fork() == 0:
        os.setsid()
        count = 0
        while True:
            count += 1
            try:
                os.close(os.open(f"/tmp/{number}-{count % 50}", os.O_CREAT | os.O_RDWR))
            except OSError:
                pass
