# Shared memory by way of /dev/zero.
# outcome: out_of_memory ok error denied
# memory: 64
import mmap
import os
import time

reader, writer = os.pipe()
for _ in range(12):
    if os.fork() == 0:
        held = 0
        for flags, protection in (
            (os.O_RDWR, mmap.PROT_READ | mmap.PROT_WRITE),
            (os.O_RDONLY, mmap.PROT_READ),
        ):
            try:
                area = mmap.mmap(
                    os.open("/dev/zero", flags), 40 * 2**20, mmap.MAP_SHARED, protection
                )
            except (OSError, ValueError):
                continue
            for start in range(0, len(area), 2**20):
                area[start : start + 2**20 : 4096]
                area.madvise(mmap.MADV_DONTNEED, start, 2**20)
            held = len(area)
            break
        os.write(writer, held.to_bytes(8, "little"))
        time.sleep(3)
        os._exit(0)
os.close(writer)
held = sum(int.from_bytes(os.read(reader, 8), "little") for _ in range(12))
time.sleep(0.5)
if held > 256 * 2**20:
    print("BREACH: holds", held >> 20, "MiB under 64")
