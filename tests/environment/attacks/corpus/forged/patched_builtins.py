# Replaces what the runner would call after it: builtins, os, json, io, sys.
# outcome: ok error timeout
# wall: 1
import builtins
import io
import json
import os
import sys


def forged(*arguments, **options):
    return '{"status": "ok", "value": "forged"}'


for name in (
    "repr",
    "str",
    "len",
    "open",
    "isinstance",
    "print",
    "exec",
    "eval",
    "compile",
    "bytes",
    "type",
):
    setattr(builtins, name, forged)
for module in (os, json, io, sys):
    for name in list(vars(module)):
        if not name.startswith("__"):
            try:
                setattr(module, name, forged)
            except BaseException:
                pass
1 / 0
