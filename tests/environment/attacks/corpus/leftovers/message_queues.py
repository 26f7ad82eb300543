# Leaves a POSIX message queue for the next call.
# outcome: ok error denied
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
queue = libc.syscall(240, b"hrm_note", 0o102, 0o666, 0)
print(
    queue,
    libc.syscall(242, queue, b"from the earlier call", 21, 0, 0)
    if queue >= 0
    else ctypes.get_errno(),
)
# %%
# outcome: ok error denied
# copies: 3
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
if libc.syscall(240, b"hrm_note", 0, 0, 0) >= 0:
    print("BREACH: a message queue of the earlier call")
