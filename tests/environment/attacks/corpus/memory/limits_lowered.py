# Lowers its limits to nothing, so that whatever reports on it fails.
# outcome: ok error out_of_memory timeout output_limit
import resource

for name in (
    "RLIMIT_FSIZE",
    "RLIMIT_NOFILE",
    "RLIMIT_NPROC",
    "RLIMIT_STACK",
    "RLIMIT_DATA",
    "RLIMIT_AS",
):
    resource.setrlimit(getattr(resource, name), (0, 0))
{"a": [1.5] * 1000}
