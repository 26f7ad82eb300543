# The same without a word to the kernel: children fill it and end, and those that keep it have never touched it.
# outcome: out_of_memory ok error denied
# memory: 64
import mmap
import os
import time

keepers, reader, writer = [], *os.pipe()
for _ in range(12):
    if os.fork() == 0:
        try:
            area = mmap.mmap(-1, 40 * 2**20)
        except (OSError, MemoryError):
            os._exit(1)
        if os.fork() == 0:
            area[::4096] = b"x" * (len(area) // 4096)
            os._exit(0)
        held = len(area) if os.wait()[1] == 0 else 0
        os.write(writer, held.to_bytes(8, "little"))
        time.sleep(3)
        os._exit(0)
os.close(writer)
held = sum(int.from_bytes(os.read(reader, 8), "little") for _ in range(12))
time.sleep(0.5)
if held > 256 * 2**20:
    print("BREACH: holds", held >> 20, "MiB under 64")
