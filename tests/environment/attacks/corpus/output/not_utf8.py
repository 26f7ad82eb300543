# Writes bytes that are no text.
# outcome: ok
# shows: end
import os
import sys

os.write(1, bytes(range(256)) * 10 + b"\xff\xfe\xc3")
sys.stderr.buffer.write(b"\xed\xa0\x80\x80\xf5")
sys.stdout.write("\ud800\udfff \0 \u202e \U0010ffff end")
