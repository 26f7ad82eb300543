# A value whose text is larger than memory.
# outcome: out_of_memory
class Growing:
    def __repr__(self):
        return "x" * 10**10


Growing()
