# One object larger than it may have.
# outcome: out_of_memory
[0] * 10**10
