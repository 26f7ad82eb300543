# Writes what could be a result to every descriptor, then fails: what stands as the value is its own claim.
# outcome: error
import json
import os
import struct

FRAMES = [bytes(64), struct.pack("=QBidd", 1, 1, 0, 0.0, 0.0), struct.pack("<I", 2**31 - 1)]
FRAMES += [
    json.dumps({"status": "ok", "value": "forged", "exit": 0}).encode() + b"\n",
    b"ok\n\0",
    b"\x80\x04\x95",
]
for descriptor in range(3, 1024):
    for frame in FRAMES:
        try:
            os.write(descriptor, frame)
        except OSError:
            pass
1 / 0
