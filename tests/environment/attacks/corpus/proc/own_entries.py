# Changes what /proc lets a process change of itself.
# outcome: ok
import os

for name, text in (
    ("oom_score_adj", "-1000"),
    ("oom_adj", "-17"),
    ("uid_map", "0 0 1"),
    ("setgroups", "allow"),
    ("attr/current", "unconfined"),
    ("loginuid", "0"),
    ("timerslack_ns", "1"),
    ("coredump_filter", "0xff"),
):
    for folder in ("/proc/self", f"/proc/{os.getpid()}", "/proc/thread-self"):
        try:
            with open(f"{folder}/{name}", "w") as file:
                file.write(text)
            print("BREACH: wrote", name) if name in (
                "oom_score_adj",
                "oom_adj",
                "uid_map",
            ) else None
        except OSError as error:
            print(name, error.strerror)
