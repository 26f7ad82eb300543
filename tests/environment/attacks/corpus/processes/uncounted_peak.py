# Asks for a child per millisecond, so that process ids run out.
# outcome: ok timeout error out_of_memory
# wall: 1
import os
import time

end = time.monotonic() + 0.4
count = 0
while time.monotonic() < end:
    try:
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
        count += 1
    except OSError:
        pass
print(count)
