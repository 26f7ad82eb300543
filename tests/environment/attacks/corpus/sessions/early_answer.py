# A thread that goes on between the calls, and answers the next one, or on a busy machine this one, before it has run.
# outcome: ok error
# session: speaker
import os
import socket
import stat
import threading
import time


def speak():
    while True:
        time.sleep(0.02)
        for descriptor in range(3, 32):
            try:
                if stat.S_ISSOCK(os.fstat(descriptor).st_mode) or stat.S_ISFIFO(
                    os.fstat(descriptor).st_mode
                ):
                    os.set_blocking(descriptor, False)
                    os.write(descriptor, bytes(50) + b'{"status": "ok", "value": "forged"}\n')
            except OSError:
                pass


threading.Thread(target=speak, daemon=True).start()
x = 1
# %%
# outcome: ok error timeout infrastructure
# session: speaker
# wait: 0.2
# wall: 1
x
# %%
# outcome: ok error timeout infrastructure
# session: speaker
# wall: 1
x
# %%
# outcome: ok
# session: bystander
# shows: value=4
2 + 2
