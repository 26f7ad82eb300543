# Writes to stderr without an end.
# outcome: output_limit
import sys

while True:
    sys.stderr.write("x" * 100_000)
