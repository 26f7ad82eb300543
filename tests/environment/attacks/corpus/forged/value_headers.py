# Writes to the descriptor of its value what its reader may stumble over.
# outcome: ok error output_limit
# copies: 10
import os
import random

HEADERS = [
    b"99999999999999999999\nx",
    b"-5\nabc",
    b"9" * 5000 + b"\n",
    b"\xff\xfe\n",
    b"",
    b"\n\n\n",
    b"3",
    b"1e9\n",
    b" 2 \nab{",
]
HEADERS += [
    b"2\nabnot json",
    b"2\nab" + b"[" * 4000,
    b'2\nab{"a": NaN}',
    b"2\nab" + b"9" * 4000,
    b'0\n"\\ud800"',
    b"\xd9\xa3\nabc",
]
for descriptor in range(3, 8):
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, random.choice(HEADERS), 0)
    except OSError:
        pass
os._exit(random.choice([0, 1]))
