# Opens devices of the machine.
# outcome: ok
import os

NAMES = "mem kmem port kmsg sda vda vdb nvme0n1 loop0 loop-control fuse kvm ptmx tty console net/tun vsock vhost-vsock"
NAMES += " input/event0 snapshot rtc0 hpet userfaultfd mapper/control pts/0 shm/x nvidia0"
for name in NAMES.split():
    for mode in (os.O_RDONLY, os.O_RDWR):
        try:
            os.open(f"/dev/{name}", mode | os.O_NONBLOCK)
            print("BREACH: opened /dev/" + name)
        except OSError:
            pass
