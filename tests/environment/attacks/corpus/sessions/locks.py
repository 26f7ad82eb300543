# Two episodes talk to each other by locks on a file that both may read.
# outcome: ok error denied
# session: a
import fcntl
import os

file = os.open("/usr/bin/env", os.O_RDONLY)
fcntl.flock(file, fcntl.LOCK_EX)
# %%
# outcome: ok error denied
# session: b
import fcntl
import os

try:
    fcntl.flock(os.open("/usr/bin/env", os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("BREACH: the other episode's lock is seen")
