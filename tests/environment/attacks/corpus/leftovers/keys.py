# Leaves a note in the keyring of its user.
# outcome: ok error denied
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
for ring in (-2, -3, -4, -5):
    print(
        ring, libc.syscall(248, b"user", b"hrm note", b"x", ctypes.c_long(1), ctypes.c_long(ring))
    )
# %%
# outcome: ok error denied
# copies: 3
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
for ring in (-2, -3, -4, -5):
    if libc.syscall(250, 10, ctypes.c_long(ring), b"user", b"hrm note", 0) >= 0:
        print("BREACH: a key of the earlier call in", ring)
