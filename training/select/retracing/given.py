"""Functions of Python's library that may be called to retrace a snippet, and bounds on their
arguments.

The functions run in the trainer's process, with arguments that a policy chose. So all arguments
must be plain data, and so small that the result is small, too. A call that is refused by these
bounds is not retraced; in the sandbox it still runs.
"""

from __future__ import annotations

import ast
import base64
import binascii
import builtins
import codecs
import functools
import html
import itertools
import json
import math
import operator
import re
import string
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, cast

__all__ = [
    "CALCULATES",
    "FUNCTIONS",
    "MODULES",
    "NOISE",
    "NOISY_ATTRIBUTES",
    "OPERATORS",
    "REWRITES",
    "TooLarge",
    "apply",
    "is_plain",
    "method",
]

NOISE = frozenset(
    {
        *(
            "ctypes",
            "datetime.now",
            "gc",
            "getpass",
            "hashlib",
            "importlib",
            "inspect",
            "locale",
            "logging",
        ),
        *(
            "multiprocessing",
            "os",
            "platform",
            "random",
            "resource",
            "secrets",
            "shutil",
            "signal",
            "site",
            "socket",
        ),
        *(
            "subprocess",
            "sys",
            "sysconfig",
            "tempfile",
            "this",
            "threading",
            "time",
            "traceback",
            "uuid",
            "warnings",
        ),
    }
)
"""Modules whose values depend on the machine, the moment or chance."""
WRITERS = frozenset(
    {
        *("calendar.day_abbr", "calendar.day_name", "calendar.month_abbr", "calendar.month_name"),
        *(
            "collections.Counter",
            "collections.namedtuple",
            "contextlib",
            "copy",
            "dataclasses",
            "difflib",
            "enum",
        ),
        *(
            "functools",
            "html",
            "io",
            "keyword",
            "pickle",
            "pprint",
            "re",
            "string",
            "struct",
            "textwrap",
            "timeit",
        ),
        *("types", "unicodedata", "zlib"),
    }
)
"""Modules, and names of modules, that only rewrite their input or choose from it."""
NOISY_ATTRIBUTES = frozenset(
    {
        "absolute",
        "cwd",
        "exists",
        "home",
        "is_dir",
        "is_file",
        "iterdir",
        "now",
        "resolve",
        "stat",
        "today",
        "utcnow",
    }
)
"""Attributes whose values depend on the machine or the moment, whatever object they belong to."""
_NAMES = (
    *(
        "abs",
        "all",
        "any",
        "ascii",
        "bin",
        "bool",
        "bytearray",
        "bytes",
        "callable",
        "chr",
        "complex",
        "dict",
    ),
    *(
        "divmod",
        "enumerate",
        "float",
        "format",
        "frozenset",
        "filter",
        "hex",
        "int",
        "isinstance",
        "iter",
        "len",
        "list",
        "map",
        "max",
    ),
    *(
        "min",
        "next",
        "oct",
        "ord",
        "pow",
        "range",
        "repr",
        "reversed",
        "round",
        "set",
        "slice",
        "sorted",
        "str",
        "sum",
    ),
    *("tuple", "zip"),
)
FUNCTIONS: dict[str, Any] = {name: getattr(builtins, name) for name in _NAMES}
"""Builtin functions that may be called."""
MODULES: dict[str, dict[str, Any]] = {
    "math": {name: getattr(math, name) for name in dir(math) if not name.startswith("_")},
    "string": {name: value for name, value in vars(string).items() if isinstance(value, str)},
    "base64": {
        name: getattr(base64, name) for name in ("b16decode", "b32decode", "b64decode", "b64encode")
    },
    "binascii": {
        name: getattr(binascii, name) for name in ("a2b_hex", "b2a_hex", "hexlify", "unhexlify")
    },
    "codecs": {name: getattr(codecs, name) for name in ("decode", "encode")},
    "json": {name: getattr(json, name) for name in ("dumps", "loads")},
    "html": {name: getattr(html, name) for name in ("escape", "unescape")},
    "functools": {"reduce": functools.reduce},
    "itertools": {
        name: getattr(itertools, name) for name in dir(itertools) if not name.startswith("_")
    },
    "ast": {"literal_eval": ast.literal_eval},
    "operator": {
        name: getattr(operator, name)
        for name in ("add", "concat", "itemgetter", "mul", "sub", "truediv")
    },
}
"""Modules, with the functions and values of each that may be called or read. Everything else in a
module is unknown.
"""
CALCULATES: frozenset[Any] = frozenset(
    {
        itertools.accumulate,
        itertools.combinations,
        itertools.permutations,
        itertools.product,
        sum,
        pow,
        divmod,
        operator.add,
        operator.mul,
        operator.sub,
        operator.truediv,
    }
) | frozenset(
    value
    for name, value in MODULES["math"].items()
    if callable(value)
    and name not in ("ceil", "copysign", "fabs", "floor", "isfinite", "isinf", "isnan", "trunc")
)
"""Functions whose result may be new. All other functions only choose, count or rewrite."""
REWRITES: frozenset[Any] = frozenset(
    {ascii, bool, bytes, float, format, int, list, repr, str, tuple}
)
"""Functions that return their argument in another form."""
OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.LShift: operator.lshift,
    ast.Mod: operator.mod,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
    ast.RShift: operator.rshift,
    ast.Sub: operator.sub,
}
_METHODS_OF = (str, bytes, bytearray, list, tuple, dict, set, frozenset, int, float, complex)
_ATOMS = (float, complex, type(None), slice, type)
_WIDENS = re.compile(r"\d{4}|\*|\{[^}]*\{")
"""Pattern of a format whose width has four digits or is given by an argument."""
_OF_NUMBERS = {
    *(
        "abs",
        "add",
        "and_",
        "bin",
        "bool",
        "complex",
        "divmod",
        "float",
        "floordiv",
        "hex",
        "int",
        "is_integer",
        "len",
    ),
    *(
        "list",
        "max",
        "min",
        "mod",
        "mul",
        "oct",
        "or_",
        "ord",
        "repr",
        "round",
        "rshift",
        "set",
        "sorted",
        "str",
    ),
    *("sub", "sum", "truediv", "tuple", "xor"),
}
"""Functions whose result is not much larger than their arguments, even if a number among the
arguments is large.
"""
_MOST_CHARACTERS = 2000
_MOST_ITEMS = 1000
_MOST_BITS = 512
_MOST_EXPONENT = 64
_MOST_DEPTH = 30


class TooLarge(Exception):
    """Raised if a call might take long, or its result might take much memory."""


def is_plain(value: Any) -> bool:
    """True if a value is plain data (no object with user code) and small, with everything that it
    contains.
    """
    waiting = [(value, 0)]
    left = _MOST_ITEMS
    while waiting:
        each, depth = waiting.pop()
        left -= 1
        if isinstance(each, int):
            left = left if each.bit_length() <= _MOST_BITS else -1
        elif isinstance(each, range):
            left = left - len(each) if max(abs(each.start), abs(each.stop)) < 2**40 else -1
        elif isinstance(each, (str, bytes, bytearray)):
            left = left if len(each) <= _MOST_CHARACTERS else -1
        elif isinstance(each, (dict, frozenset, list, set, tuple)):
            items = cast("Collection[Any]", each.items() if isinstance(each, dict) else each)
            left -= len(items)
            left = left if depth < _MOST_DEPTH else -1
            waiting += [(item, depth + 1) for item in items] if left >= 0 else ()
        elif not isinstance(each, _ATOMS):
            return False
        if left < 0:
            return False
    return True


def method(value: Any, name: str) -> Any:
    """Method of plain data that may be called (None for any other attribute)."""
    if name.startswith("_") or not isinstance(value, _METHODS_OF):
        return None
    found = getattr(value, name, None)
    return found if callable(found) else None


def apply(function: Any, args: Sequence[Any], keywords: Mapping[str, Any] = {}) -> Any:
    """Call the function and return its result. Raises `TooLarge` if the result might be large, and
    the function's errors.
    """
    values = [*args, *keywords.values()]
    own = getattr(function, "__self__", None)
    if not all(map(is_plain, values)) or (isinstance(own, _METHODS_OF) and not is_plain(own)):
        raise TooLarge
    if not _is_bounded(function, own, values):
        raise TooLarge
    result = function(*args, **keywords)
    if not isinstance(result, Iterator):
        return result
    items = list(itertools.islice(cast("Iterator[Any]", result), _MOST_ITEMS + 1))
    if len(items) > _MOST_ITEMS:
        raise TooLarge
    return items


def _is_bounded(function: Any, own: Any, values: Sequence[Any]) -> bool:
    name: str = getattr(function, "__name__", "")
    pattern = (
        own
        if name == "format" and isinstance(own, str)
        else values[-1]
        if function is format
        else None
    )
    if name == "mod" and isinstance(values[0], (str, bytes)):
        pattern = str(values[0])
    if pattern is not None:
        return not _WIDENS.search(str(pattern))
    if name in ("pow", "lshift"):
        return (
            len(values) == 2
            and isinstance(values[1], int | float)
            and abs(values[1]) <= _MOST_EXPONENT
        )
    # allow a few codecs only: bz2 and zip expand small data to large
    if name in ("decode", "encode") and not isinstance(own, _METHODS_OF):
        return values[-1] in ("ascii", "base64", "hex", "rot13", "rot_13", "utf-8", "utf8")
    # bytes and bytearray, given as a function, make large results of numbers
    if any(each in (bytes, bytearray) for each in values if isinstance(each, type)):
        return function is isinstance
    if function is itertools.product:
        return (
            len(values) * math.prod(abs(each) for each in values if isinstance(each, int))
            <= _MOST_ITEMS
        )
    if name in ("replace", "join"):
        return sum(map(_length, values)) * (1 + _length(own)) <= 100 * _MOST_CHARACTERS
    if name == "mul" and any(map(_length, values)):
        return all(abs(each) <= _MOST_ITEMS for each in values if isinstance(each, int))
    return name in _OF_NUMBERS or all(
        abs(each) <= _MOST_ITEMS for each in values if isinstance(each, int)
    )


def _length(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return sum(map(_length, cast("list[Any]", value)))
    return len(value) if hasattr(value, "__len__") else 0
