# Puts its streams and the descriptor of its value in each other's places.
# outcome: ok error output_limit
import os

copies = [os.dup(descriptor) for descriptor in range(1, 4)]
for descriptor, copy in zip((3, 1, 2), copies, strict=True):
    os.dup2(copy, descriptor)
print("to stdout")
"the value"
