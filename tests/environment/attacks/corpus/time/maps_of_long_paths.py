# Maps a file whose path is half a megabyte long, thousands of times, and asks for what its maps are looked at for.
# outcome: timeout
# wall: 4
# cpu: 30
# memory: 512
import ctypes
import os

libc = ctypes.CDLL(None)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_long, [ctypes.c_long] * 6
for _ in range(2500):
    os.mkdir("d" * 250)
    os.chdir("d" * 250)
file = os.open("f", os.O_CREAT | os.O_RDWR)
os.ftruncate(file, 4096)
for i in range(10_000):
    libc.mmap(0, 4096, 1 + (i & 1), 2, file, 0)
action = (ctypes.c_uint64 * 4)(1, 0, 0, 0)
while True:
    libc.syscall(13 if os.uname().machine == "x86_64" else 134, 17, action, 0, 8)
