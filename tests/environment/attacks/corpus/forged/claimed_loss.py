# The same in a call of its own: a failure is not passed off as a fault of the infrastructure.
# outcome: error
import os

for descriptor in range(0, 256):
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.ftruncate(descriptor, 0)
    except OSError:
        pass
os._exit(3)
