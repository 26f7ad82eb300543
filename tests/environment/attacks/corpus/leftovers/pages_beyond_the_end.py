# Leaves pages beyond the end of the files that all calls of a slot write to, whose number the next one can read.
# outcome: ok
import ctypes

libc = ctypes.CDLL(None)
for descriptor in (1, 2, 3):
    libc.fallocate(
        descriptor, 1, ctypes.c_long(4096 * descriptor), ctypes.c_long(4096 * 10 * descriptor)
    )
# %%
# outcome: ok
# shows: value=\[0, 0, 0\]
import os

[os.fstat(descriptor).st_blocks for descriptor in (1, 2, 3)]
