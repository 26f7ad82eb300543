# Writes to stdout without an end.
# outcome: output_limit
while True:
    print("x" * 100_000)
