# Aborts.
# outcome: error
import os

os.abort()
