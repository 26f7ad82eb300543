# An exception with a message of a hundred million characters.
# outcome: error out_of_memory output_limit
# heavy: yes
raise ValueError("x" * 100_000_000)
