# A child that lives on between the calls, and reads the next one in its parent's place.
# outcome: ok
# session: a
import os
import select
import time

if os.fork() == 0:
    os.setsid()
    end = time.monotonic() + 20
    while time.monotonic() < end:
        for descriptor in range(3, 32):
            try:
                os.set_blocking(descriptor, False)
                data = os.read(descriptor, 65536)
                os.write(1, b"stolen %d\n" % len(data))
            except OSError:
                pass
        time.sleep(0.005)
    os._exit(0)
# %%
# outcome: ok error timeout infrastructure
# session: a
# wait: 0.2
# wall: 1
print("mine")
# %%
# outcome: ok
# session: b
# shows: other
print("other")
