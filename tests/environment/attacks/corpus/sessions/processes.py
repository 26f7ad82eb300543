# Kills or stops the process of another episode.
# outcome: ok
# session: victim
x = 5
# %%
# outcome: ok error out_of_memory infrastructure
# session: thief
import os
import signal

for pid in (-1, *range(2, 5000)):
    for number in (signal.SIGKILL, signal.SIGSTOP):
        try:
            os.kill(pid, number)
        except OSError:
            pass
# %%
# outcome: ok
# session: victim
# shows: value=5
x
