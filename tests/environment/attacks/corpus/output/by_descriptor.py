# Writes to the descriptor, and ignores every error.
# outcome: output_limit timeout
# wall: 1
import os

while True:
    try:
        os.write(1, b"x" * 1_000_000)
    except OSError:
        pass
