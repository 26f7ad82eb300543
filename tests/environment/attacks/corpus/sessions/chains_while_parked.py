# Goes on between the calls by processes of which each forks the next and ends, faster than they can be stopped.
# outcome: ok
# session: a
import os
import time


def fork():
    while True:
        try:
            return os.fork()
        except (
            BlockingIOError
        ):  # so many are dying at once that there is no room: a moment later there is
            pass


for _ in range(6):
    if fork() == 0:
        os.setsid()
        for turn in range(10**9):
            if turn % 50 == 49:
                open("/tmp/alive", "w").write(str(time.monotonic()))
            if fork():
                os._exit(0)
x = 1
# %%
# outcome: ok error out_of_memory timeout
# session: a
# wait: 1.5
# runs: 2
# never: awake
import os
import time

written = float(open("/tmp/alive").read() or 0) if os.path.exists("/tmp/alive") else 0.0
print("awake" if 0.02 < time.monotonic() - written < 0.6 else "asleep")
