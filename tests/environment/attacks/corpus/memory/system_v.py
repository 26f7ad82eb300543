# Keeps its data in shared memory segments that nothing maps.
# outcome: ok error out_of_memory denied
# memory: 64
import ctypes
import time

libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
libc.shmdt.argtypes = [ctypes.c_void_p]
size, held = 32 * 2**20, 0
while held < 512 * 2**20:
    segment = libc.shmget(0, ctypes.c_size_t(size), 0o1600)
    if segment < 0:
        break
    address = libc.shmat(segment, None, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        break
    ctypes.memset(address, 1, size)
    libc.shmdt(address)
    held += size
time.sleep(0.3)
print("held", held >> 20, ctypes.get_errno())
if held > 256 * 2**20:
    print("BREACH: half a GiB under 64 MiB")
