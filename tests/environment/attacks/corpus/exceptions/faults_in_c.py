# Corrupts the memory of its own interpreter.
# outcome: error timeout out_of_memory ok
# wall: 1
import ctypes

for thing in (None, True, int, "", ()):
    ctypes.memset(id(thing), 0x41, 64)
print([None, True, int("1"), ()])
