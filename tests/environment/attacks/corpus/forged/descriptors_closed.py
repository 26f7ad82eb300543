# Closes everything, then fails.
# outcome: error
import os

os.closerange(0, 4096)
1 / 0
