# Maps huge pages, which the host has set aside for others and which count as no process's memory; unreserved too.
# outcome: ok
# shows: value=0
import mmap

taken = 0
for flags in (0x40022, 0x44022, 0x44022 | 21 << 26, 0x44001):
    try:
        mmap.mmap(-1, 1 << 21, flags=flags)
        taken += 1
    except OSError:
        pass
taken
