# Makes its own clocks stand still, so that it seems to have taken no time.
# outcome: ok
# seconds: 0.2
import time

real = time.sleep
for name in (
    "time",
    "monotonic",
    "perf_counter",
    "process_time",
    "time_ns",
    "monotonic_ns",
    "perf_counter_ns",
):
    setattr(time, name, lambda: 0)
real(0.2)
time.sleep = lambda seconds: None
