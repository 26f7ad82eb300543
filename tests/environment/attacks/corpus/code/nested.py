# Code that is nested deeper than the parser can follow.
# outcome: error out_of_memory
eval("(" * 100_000 + ")" * 100_000)
