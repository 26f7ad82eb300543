# Grows until it is stopped, and touches every page.
# outcome: out_of_memory
# memory: 96
blocks = []
while True:
    blocks.append(bytearray(b"x" * 2**20))
