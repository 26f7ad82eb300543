# Maps and touches memory without asking the allocator.
# outcome: out_of_memory error
# memory: 96
import mmap

maps = []
for _ in range(64):
    area = mmap.mmap(-1, 16 * 2**20)
    area[::4096] = b"x" * (len(area) // 4096)
    maps.append(area)
print("BREACH: a GiB under 96 MiB")
