# Recursion with the limit taken away.
# outcome: error out_of_memory timeout
# wall: 1
import sys

sys.setrecursionlimit(10**9)


def down(n):
    return [down(n + 1)] + sorted([n], key=lambda x: down(x))


down(0)
