# Waits for ever for the other end of a pipe with a name.
# outcome: timeout
# wall: 0.4
import os

os.mkfifo("/tmp/pipe")
open("/tmp/pipe").read()
