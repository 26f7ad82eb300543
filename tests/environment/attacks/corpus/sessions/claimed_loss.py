# Moves the file that its code came in back to the beginning, as if it had never been read, then fails: it is not run again.
# outcome: ok
# session: a
x = 1
# %%
# outcome: error
# session: a
import os

for descriptor in range(4, 32):
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
    except OSError:
        pass
os._exit(3)
