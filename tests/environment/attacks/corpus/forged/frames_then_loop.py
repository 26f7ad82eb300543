# Says that it is finished, then goes on.
# outcome: timeout
# wall: 0.5
import os

os.set_blocking(1, False)
for descriptor in range(3, 256):
    try:
        os.set_blocking(descriptor, False)
        os.write(descriptor, b"\0" * 4096)
        os.close(descriptor)
    except OSError:
        pass
while True:
    pass
