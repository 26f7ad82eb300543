# Expects the random numbers of the call before.
# outcome: ok
# copies: 3
# differs: yes
import os
import random
import tempfile
import uuid

print(random.random(), os.urandom(8), uuid.uuid4(), tempfile.mktemp())
