# Leaves modules in the current folder that have the names of the library's.
# outcome: ok error
for name in ("json", "random", "sitecustomize", "usercustomize", "numpy", "encodings", "os"):
    open(f"/tmp/{name}.py", "w").write("print('BREACH: imported')")
# %%
# outcome: ok
# copies: 3
import colorsys
import json
import random

print(json.dumps([1]))
