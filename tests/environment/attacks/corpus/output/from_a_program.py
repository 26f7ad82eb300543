# Lets another program write.
# outcome: output_limit
import os

os.system("yes; yes >&2")
