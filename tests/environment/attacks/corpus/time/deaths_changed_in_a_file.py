# Has another process change what is to become of dead children while the call that asks for it is looked at: in a file
# that it has mapped for itself alone, whose pages are the file's until they are written to.
# outcome: ok error timeout
import ctypes
import os
import struct
import time

libc = ctypes.CDLL(None)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_long, [ctypes.c_long] * 6
harmless, harmful = struct.pack("QQQQ", 0, 0, 0, 0), struct.pack("QQQQ", 0, 2, 0, 0)
file = os.open("/tmp/action", os.O_CREAT | os.O_RDWR)
os.ftruncate(file, 4096)
at = libc.mmap(0, 4096, 3, 2, file, 0)
changer = os.fork()
if changer == 0:
    while True:
        os.pwrite(file, harmful, 0)
        os.pwrite(file, harmless, 0)
for attempt in range(200):
    libc.syscall(13 if os.uname().machine == "x86_64" else 134, 17, ctypes.c_long(at), 0, 8)
    if attempt % 20 == 0:
        child = os.fork()
        if child == 0:
            os._exit(0)
        try:
            os.waitpid(child, 0)
        except ChildProcessError:
            print("BREACH: nobody is told of a child's death")
            break
os.kill(changer, 9)
