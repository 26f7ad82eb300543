# Ends the thread that each process is named after, and goes on in another, whose memory is not found under that name.
# outcome: out_of_memory
# memory: 96
import ctypes
import mmap
import os
import threading
import time

libc = ctypes.CDLL(None)
threading.stack_size(1 << 20)


def hold():
    time.sleep(1)
    kept = mmap.mmap(-1, 20 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, 20 << 20, 4096):
        kept[at] = 1
    time.sleep(60)


for _ in range(6):
    if os.fork() == 0:
        threading.Thread(target=hold).start()
        libc.syscall(60 if os.uname().machine == "x86_64" else 93, 0)
time.sleep(60)
