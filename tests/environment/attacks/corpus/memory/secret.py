# Memory that not even the kernel reads (memfd_secret), and pages of unusual size.
# outcome: ok error denied out_of_memory
# memory: 64
import ctypes
import mmap
import os

libc = ctypes.CDLL(None, use_errno=True)
descriptor = libc.syscall(447, 0)
if descriptor >= 0:
    try:
        os.ftruncate(descriptor, 2**30)
        area = mmap.mmap(descriptor, 2**30)
        print("BREACH: a GiB of secret memory")
    except (OSError, ValueError) as error:
        print(error)
if libc.mlockall(3) == 0:
    print("locked")
