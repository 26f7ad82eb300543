# Replaces the functions of the runner in the frames above it.
# outcome: ok error timeout infrastructure
# wall: 1
import sys

frame = sys._getframe()
while frame is not None:
    for name in list(frame.f_globals):
        if name not in ("__builtins__", "__name__") and frame is not sys._getframe():
            frame.f_globals[name] = lambda *_, **__: "forged"
    frame = frame.f_back
"value"
