# Gives itself rules by the ten thousand, each of which the kernel keeps in memory that no limit counts.
# outcome: ok
# shows: value=0
import ctypes
import struct

libc, kept = ctypes.CDLL(None), 0
for _ in range(4):
    rules = libc.syscall(444, struct.pack("=QQQ", 0, 3, 0), 24, 0)
    for port in range(1000):
        kept += libc.syscall(445, rules, 2, struct.pack("=QQ", 3, port), 0) == 0
kept
