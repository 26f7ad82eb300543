# Reads what /proc tells of the machine.
# outcome: ok
NAMES = "1/environ 1/cmdline 1/root kcore kallsyms kmsg keys sched_debug net/tcp sysvipc/shm mounts self/mountinfo"
for name in NAMES.split():
    try:
        text = open(f"/proc/{name}", "rb").read(4096)
        print(name, len(text))
        if name in ("kcore", "kmsg", "keys") or b"CANARY" in text or b"@SCRATCH@" in text:
            print("BREACH:", name)
    except OSError as error:
        print(name, error.strerror)
