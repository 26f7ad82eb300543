# Holds the interpreter's lock in one call of C.
# outcome: timeout
# wall: 0.5
sum(iter(int, 1))
