# Answers twice, so that the next call is over before it began.
# outcome: ok error
# session: a
import os
import stat


def answer():
    for descriptor in range(3, 32):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.write(descriptor, bytes(2))
        except OSError:
            pass


answer()
import time

time.sleep(0.2)
x = 1
# %%
# outcome: ok error timeout
# session: a
# wall: 1
print("second")
# %%
# outcome: ok error timeout
# session: a
# wall: 1
print("third")
# %%
# outcome: ok
# session: b
# shows: other
print("other")
