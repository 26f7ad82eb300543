# Changes settings of the kernel.
# outcome: ok
import os

NAMES = "sys/kernel/core_pattern sys/kernel/hostname sys/vm/drop_caches sysrq-trigger sys/kernel/modprobe"
NAMES += " sys/user/max_user_namespaces sys/kernel/ns_last_pid sys/vm/overcommit_memory sys/kernel/shmmax"
for name in NAMES.split():
    for path in (f"/proc/{name}", f"/proc/self/root/proc/{name}"):
        try:
            os.close(os.open(path, os.O_WRONLY))
            print("BREACH: may write", path)
        except OSError as error:
            print(path, error.strerror)
