# Changes builtins and modules for whoever runs next.
# outcome: ok error
# session: a
import builtins
import os
import sys

import json

builtins.print = lambda *_: None
builtins.repr = lambda thing: "forged"
builtins.len = lambda thing: -1
json.dumps = lambda thing: "forged"
os.getpid = lambda: 7
sys.modules["math"] = None
sys.path.insert(0, "/tmp")
open("/tmp/random.py", "w").write("raise SystemExit('BREACH: imported')")
# %%
# outcome: ok
# copies: 3
# shows: 3 \[1\] 2\.0
# never: forged|BREACH
import json
import math
import random

print(len([1, 2, 3]), json.dumps([1]), math.sqrt(4))
# %%
# outcome: ok
# session: b
# shows: 3\s+value=6
import math

print(len([1, 2, 3]), end=" ")
math.factorial(3)
# %%
# outcome: ok error
# session: a
1 + 1
