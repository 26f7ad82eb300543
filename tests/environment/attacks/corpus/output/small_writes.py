# Writes by single bytes.
# outcome: output_limit timeout
# wall: 1
# output: 256
import os

while True:
    os.write(1, b"x")
