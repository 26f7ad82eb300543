# Grows, and catches every error on the way.
# outcome: timeout out_of_memory ok
# memory: 64
# wall: 0.7
blocks = []
while True:
    try:
        blocks.append(bytearray(b"x" * 2**20))
    except MemoryError:
        pass
