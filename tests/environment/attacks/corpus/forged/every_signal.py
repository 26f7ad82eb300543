# Children die by every signal that there is, and then the first process by one that the kernel forces on it.
# outcome: error ok
# copies: 8
import ctypes
import os
import random
import signal

for number in sorted(
    set(range(1, 65))
    - {signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
):
    if os.fork() == 0:
        os.kill(os.getpid(), number)
        os._exit(0)
    os.wait()
code = {"ill": b"\x0f\x0b", "trap": b"\xcc", "fault": b"\xf4", "division": b"\x31\xc9\xf7\xf1"}[
    random.choice(["ill", "trap", "fault", "division"])
]
if os.uname().machine == "x86_64":
    import mmap

    area = mmap.mmap(
        -1,
        4096,
        mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
        mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC,
    )
    area.write(code)
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(area)))()
