# Becomes another program, which ends well.
# outcome: ok error
import os

os.execv("/bin/sh", ["sh", "-c", "echo a claim of its own >&3; echo replaced"])
