# Enters the kernel by the 32-bit door, whose calls have other numbers.
# outcome: ok error denied
import ctypes
import mmap
import platform

if platform.machine() == "x86_64":
    # mov eax, edi; mov ebx, esi; mov ecx, edx; mov edx, r8d ... int 0x80; ret
    code = b"\x53\x89\xf8\x89\xf3\x89\xd1\x31\xd2\x31\xf6\x31\xff\xcd\x80\x5b\xc3"
    area = mmap.mmap(
        -1,
        4096,
        mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
        mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC,
    )
    area.write(code)
    call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int)(
        ctypes.addressof(ctypes.c_char.from_buffer(area))
    )
    for name, number, first, second in (
        ("unshare user", 310, 0x10000000, 0),
        ("unshare net", 310, 0x50000000, 0),
        ("personality", 136, 8, 0),
        ("bpf", 357, 0, 0),
        ("userfaultfd", 374, 1, 0),
        ("keyctl", 288, 0, -3),
    ):
        if call(number, first, second) >= 0:
            print("BREACH:", name)
