# Calls functions of the fork server through its modules.
# outcome: ok error timeout out_of_memory
# wall: 1
import sys

for name, module in list(sys.modules.items()):
    if any(word in name for word in ("sandbox", "zygote", "slot", "snippet", "kernel", "protocol")):
        for function in list(vars(module).values()):
            if callable(function):
                for arguments in ((), (0,), (3,), (b"x",), (0, 0)):
                    try:
                        function(*arguments)
                    except Exception:
                        pass
print("done")
