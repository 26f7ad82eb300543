# Fills shared memory and takes its pages out of its own maps again: held, but in nobody's resident set.
# outcome: out_of_memory ok error denied
# memory: 64
import mmap
import os
import time

reader, writer = os.pipe()
for _ in range(20):
    if os.fork() == 0:
        area, held = None, 0
        for size in (56, 40, 24, 12):
            try:
                area = mmap.mmap(-1, size * 2**20)
                break
            except (OSError, MemoryError, ValueError):
                pass
        step = 2**20
        for start in range(0, len(area) if area else 0, step):
            area[start : start + step : 4096] = b"x" * (step // 4096)
            area.madvise(mmap.MADV_DONTNEED, start, step)
            held += step
        os.write(writer, held.to_bytes(8, "little"))
        time.sleep(3)
        os._exit(0)
os.close(writer)
held = sum(int.from_bytes(os.read(reader, 8), "little") for _ in range(20))
time.sleep(0.5)
if held > 256 * 2**20:
    print("BREACH: holds", held >> 20, "MiB under 64")
