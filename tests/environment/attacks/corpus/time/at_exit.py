# Does its work after the end: at exit, in threads that no one waits for, in finalisers.
# outcome: ok timeout
# wall: 0.6
import atexit
import threading
import time


class Late:
    def __del__(self):
        time.sleep(60)


late = Late()
atexit.register(time.sleep, 60)
threading.Thread(target=time.sleep, args=(60,)).start()
print("done")
