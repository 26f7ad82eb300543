# Takes it all and gives it back before anybody looks.
# outcome: ok error out_of_memory
# memory: 64
import os

for _ in range(20):
    children = []
    for _ in range(8):
        if (child := os.fork()) == 0:
            block = bytearray(32 * 2**20)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
