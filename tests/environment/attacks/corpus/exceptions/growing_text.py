# An exception whose text is larger than memory.
# outcome: error out_of_memory
# memory: 96
class Growing(Exception):
    def __str__(self):
        return "x" * 10**9


raise Growing
