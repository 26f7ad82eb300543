# Searches its own memory for the code and the output of the call that ran before it.
# outcome: ok
x = ["earlier call 31337" for _ in range(100)]
print(x[0])
# %%
# outcome: ok
# copies: 2
import ctypes
import gc
import os
import re

libc = ctypes.CDLL(None, use_errno=True)
libc.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
pattern = re.compile(b"earlier.call.[0-9]{5}")
regions = {id(thing) >> 20 for thing in gc.get_objects()}
regions |= {region + near for region in set(regions) for near in range(-2, 3)}
reader, writer = os.pipe()
found = 0
for region in sorted(regions):
    for page in range(256):
        if libc.write(writer, (region << 20) + page * 4096, 4096) == 4096:
            found += len(pattern.findall(os.read(reader, 4096)))
if found:
    print("BREACH: found", found, "times")
