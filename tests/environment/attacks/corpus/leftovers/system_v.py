# Leaves shared memory, semaphores and message queues of the kernel for the next call to find.
# outcome: ok error denied
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
KEY = 0x48524D
segment = libc.shmget(KEY, ctypes.c_size_t(4096), 0o1666)
if segment >= 0:
    address = libc.shmat(segment, None, 0)
    ctypes.memset(ctypes.c_void_p(address), 65, 64)
queue = libc.msgget(KEY, 0o1666)
print(segment, queue, libc.semget(KEY, 1, 0o1666))
# %%
# outcome: ok error denied
# copies: 3
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
KEY = 0x48524D
if libc.shmget(KEY, ctypes.c_size_t(4096), 0) >= 0:
    print("BREACH: shared memory of the earlier call")
if libc.msgget(KEY, 0) >= 0:
    print("BREACH: a message queue of the earlier call")
if libc.semget(KEY, 1, 0) >= 0:
    print("BREACH: semaphores of the earlier call")
