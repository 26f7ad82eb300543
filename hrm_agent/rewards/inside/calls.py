"""Code that runs in the sandbox: loads the code under test as a module, evaluates calls of it, and
returns their values as plain data.

The code under test can change this code. So the result is only a claim, and is compared outside of
the sandbox.
"""

# ruff: noqa: S102, S307, F821
# pyright: basic, reportUndefinedVariable=false
import builtins
import linecache
import sys

FILE = "<program>"


def load(source, unusual):
    """Run `source` as a module that is not `__main__`. `unusual`: source of the functions that
    `data` needs for rare values.
    """
    global unusual_source
    unusual_source = unusual
    builtins.exit = builtins.quit = sys.exit
    module = sys.modules["solution"] = type(sys)("solution")
    linecache.cache[FILE] = (len(source), None, source.splitlines(True), FILE)
    exec(compile(source, FILE, "exec", dont_inherit=True), module.__dict__)


def returned(call):
    """Evaluate an expression in the loaded module. Returns `["=", data of the value]`, or
    `["!", error]`.
    """
    try:
        return ["=", data(eval(call, sys.modules["solution"].__dict__))]
    except BaseException as error:
        return ["!", type(error).__name__]


def data(value):
    """Convert `value` to JSON for `hrm_agent.rewards.returned`. A list in the JSON begins with a
    mark of the value's type.
    """
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if -(2**63) < value < 2**63 else ["i", hex(value)]
    if kind is float:
        return value if value - value == 0 else ["f", repr(value)]
    if kind is list or kind is tuple:
        return ["l", *map(data, value)]
    if kind is dict:
        return ["d", *([data(key), data(item)] for key, item in value.items())]
    if kind is set or kind is frozenset:
        return ["s", *map(data, value)]
    if "data_of_others" not in globals():
        exec(unusual_source, globals())
    return data_of_others(value)
