# Calls itself by names that look like what the kernel says of a process: its memory, its threads, its state.
# session: named
# outcome: ok
# peak: 200
import ctypes

libc = ctypes.CDLL(None)
libc.prctl(15, b"VmHWM: 9999999", 0, 0, 0)
# %%
# session: named
# outcome: ok
# shows: ^7
# peak: 200
libc.prctl(15, b"VmHWM: x", 0, 0, 0)
print(7)
# %%
# session: named
# outcome: ok
# shows: ^7
# peak: 200
# wait: 0.4
libc.prctl(15, b"\nVmHWM:\t0 kB", 0, 0, 0)
print(7)
# %%
# session: named
# outcome: ok
# shows: ^7
# peak: 200
libc.prctl(15, b") Z 1 1 1 1 1 1", 0, 0, 0)
print(7)
# %%
# session: named
# outcome: ok
# shows: ^7
# peak: 200
# wait: 0.4
import os

if os.fork() == 0:  # a tree, which is looked at
    libc.prctl(15, b"Threads:\t1", 0, 0, 0)
    import time

    time.sleep(0.2)
    os._exit(0)
os.wait()
print(7)
