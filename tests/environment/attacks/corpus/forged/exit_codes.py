# Ends with every exit code in turn, none of which is a fault of the infrastructure.
# outcome: ok error
# copies: 6
import os
import random

os._exit(random.choice([0, 1, 2, 77, 90, 91, 92, 99, 125, 126, 127, 128 + 9, 128 + 24, 255]))
