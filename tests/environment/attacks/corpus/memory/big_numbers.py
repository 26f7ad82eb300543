# A number that takes for ever, in one call of C that holds the interpreter's lock.
# outcome: timeout out_of_memory
# wall: 0.5
10**10**9
