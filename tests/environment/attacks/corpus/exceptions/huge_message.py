# An exception with a message of a hundred million characters.
# outcome: error out_of_memory output_limit
# wall: 8
# cpu: 8
raise ValueError("x" * 100_000_000)
