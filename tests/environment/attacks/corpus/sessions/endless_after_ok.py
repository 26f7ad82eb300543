# Answers in time and leaves a swarm at work, call after call.
# outcome: ok
# session: a
import os

for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        while True:
            pass
# %%
# outcome: ok error timeout
# session: a
# wall: 2
import os

for _ in range(30):
    try:
        if os.fork() == 0:
            os.setsid()
            while True:
                pass
    except OSError:
        pass
# %%
# outcome: ok error timeout infrastructure
# session: a
# wall: 2
print("end")
