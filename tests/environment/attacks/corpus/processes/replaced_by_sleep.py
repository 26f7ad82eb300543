# Becomes another program, which does not end.
# outcome: timeout
# wall: 0.4
import os

os.execvp("sleep", ["sleep", "60"])
