# The shell's own fork bomb.
# outcome: timeout ok error out_of_memory
# wall: 0.7
import subprocess

subprocess.run(["/bin/sh", "-c", "b() { b | b & }; b; sleep 5"])
