# Lives on in memory that was lent twice: who lent it goes on when the one between is killed, and changes what the other
# asks for while it is looked at.
# outcome: ok error timeout
# wall: 8
# cpu: 20
import ctypes
import mmap
import os
import struct
import time

libc = ctypes.CDLL(None)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_long, [ctypes.c_long] * 6


def call(number, *arguments):
    """Machine code."""
    registers = (b"\x48\xbf", b"\x48\xbe", b"\x48\xba", b"\x49\xba", b"\x49\xb8")
    code = b"".join(
        register + struct.pack("<Q", value)
        for register, value in zip(registers, arguments, strict=False)
    )
    return code + b"\xb8" + struct.pack("<I", number) + b"\x0f\x05"


def backwards(code):
    return code + b"\xe9" + struct.pack("<i", -len(code) - 5)


if os.uname().machine == "x86_64":
    page = libc.mmap(0, 1 << 16, 7, 0x22, -1, 0)
    action, flag, pids = page + 0x8000, page + 0x8100, page + 0x8200
    stacks = page + 0x9000, page + 0xA000
    # third process: 300 times sigaction, fork a child that exits, wait4; sets `flag` if wait4 gives ECHILD; then sleeps
    child_ends = call(60, 0)
    body = (
        call(13, 17, action, 0, 8)
        + call(57)
        + b"\x85\xc0\x75"
        + bytes([len(child_ends)])
        + child_ends
    )
    body += call(61, (1 << 64) - 1, 0, 0, 0)
    body += b"\x48\x83\xf8\xf6\x75\x0a\x48\xa3" + struct.pack("<Q", flag)  # -ECHILD
    body += b"\xff\xcb"
    sleep = backwards(call(34))
    third = (
        b"\xbb"
        + struct.pack("<I", 300)
        + body
        + b"\x0f\x85"
        + struct.pack("<i", -len(body) - 6)
        + sleep
    )
    # second process: stores its pid, clones the third in the same memory (CLONE_VM), never returns
    second = (
        call(39) + b"\x48\xa3" + struct.pack("<Q", pids) + call(56, 0x4111, stacks[1] - 8, 0, 0, 0)
    )
    second += sleep
    ctypes.memmove(page, second, len(second))
    ctypes.memmove(page + 0x1000, third, len(third))
    ctypes.memmove(stacks[1] - 8, struct.pack("Q", 0), 8)
    # where clone returns to, by the stack: the one between by `ret`, the last by a jump after its own clone
    entry = second.index(b"\x0f\x05", len(call(39)) + 10) + 2
    jump = b"\x85\xc0\x75\x05\xe9" + struct.pack("<i", 0x1000 - (entry + 9))
    ctypes.memmove(page + entry, jump + sleep, len(jump + sleep))
    ctypes.memmove(stacks[0] - 8, struct.pack("Q", page), 8)
    ctypes.c_uint64.from_address(flag).value = 12345
    killer = os.fork()
    if killer == 0:
        time.sleep(0.5)
        os.kill(3, 9)
        os._exit(0)
    between = libc.syscall(56, ctypes.c_long(0x4111), ctypes.c_long(stacks[0] - 8), 0, 0, 0)
    words = (ctypes.c_uint64 * 2).from_address(action)
    end = time.monotonic() + 4
    while time.monotonic() < end and ctypes.c_uint64.from_address(flag).value == 12345:
        words[1] = 2
        words[1] = 0
    came = ctypes.c_int64.from_address(flag).value
    print("between", between, "came to", came)
    if came == -10:
        print("BREACH: nobody is told of a child's death")
