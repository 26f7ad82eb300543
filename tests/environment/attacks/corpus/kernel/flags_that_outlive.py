# Leaves flags and offsets on the descriptors that it was given, for the next call to read.
# outcome: ok
import fcntl
import os

for descriptor in (0, 1, 2, 3):
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND | os.O_ASYNC)
    try:
        os.lseek(descriptor, 12345, os.SEEK_SET)
    except OSError:
        pass
# %%
# outcome: ok
# shows: value='clean'
import fcntl
import os

flags = [fcntl.fcntl(descriptor, fcntl.F_GETFL) for descriptor in (0, 1, 2, 3)]
offsets = [os.lseek(descriptor, 0, os.SEEK_CUR) for descriptor in (1, 2, 3)]
"BREACH" if any(each & (os.O_NONBLOCK | os.O_APPEND | os.O_ASYNC) for each in flags) or any(
    offsets
) else "clean"
