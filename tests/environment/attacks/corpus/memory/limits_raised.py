# Raises its limits, and those of the process that started it.
# outcome: ok
import os
import resource

NAMES = [name for name in dir(resource) if name.startswith("RLIMIT_")]
for name in NAMES:
    kind = getattr(resource, name)
    soft, hard = resource.getrlimit(kind)
    for target in (0, os.getppid()):
        for limit in (resource.RLIM_INFINITY, 2**40):
            if hard not in (resource.RLIM_INFINITY, -1) and limit != hard:
                try:
                    resource.prlimit(target, kind, (limit, limit))
                    print("BREACH: raised", name)
                except (ValueError, OSError):
                    pass
for name in ("RLIMIT_AS", "RLIMIT_NPROC", "RLIMIT_CPU", "RLIMIT_NOFILE", "RLIMIT_FSIZE"):
    if resource.getrlimit(getattr(resource, name))[1] == resource.RLIM_INFINITY:
        print("BREACH: no limit", name)
