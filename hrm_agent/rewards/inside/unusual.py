"""Code that runs in the sandbox beside `calls`, with the same globals: converts values of rare
types to plain data.

Types of a module are only looked for if the program has imported the module, as there are no values
of them before. Importing the module would take longer than most programs.
"""

# ruff: noqa: F821
# pyright: basic, reportUndefinedVariable=false
from _collections_abc import Mapping
from _collections_abc import Set as AbstractSet

LARGEST_EXPONENT = 5000
NP = "num" + "py"  # as one word it would route every program to a slot with numpy
SEQUENCES = (("_collections", "deque"), ("collections", "UserList"), ("array", "array"))


def data_of_others(value):
    """Convert a value of a rare type. Returns `["o", type]` for a value that cannot be compared
    with a literal.
    """
    np = sys.modules.get(NP)
    dataclasses = sys.modules.get("dataclasses")
    if np is not None and isinstance(value, (np.ndarray, np.generic)):
        return data_of_numpy(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return ["b", bytes(value).hex()]
    if isinstance(value, str):
        return str.__str__(value)
    if (number := data_of_number(value)) is not None:
        return number
    if isinstance(value, (dict, Mapping)):
        return ["d", *([data(key), data(item)] for key, item in value.items())]
    if isinstance(value, AbstractSet):
        return ["s", *map(data, value)]
    sequences = [getattr(sys.modules.get(module), name, list) for module, name in SEQUENCES]
    if isinstance(value, (list, tuple, range, *sequences)):
        return ["l", *map(data, value)]
    if dataclasses is not None and dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [
            "d",
            *(
                [field.name, data(getattr(value, field.name))]
                for field in dataclasses.fields(value)
            ),
        ]
    return ["o", type(value).__name__]


def data_of_numpy(value):
    """Convert an array of numpy, or one of its numbers. Numbers of half and single precision are
    marked: `["2", x]`, `["4", x]`.
    """
    single = value
    if value.ndim:
        narrow = value.dtype.kind == "f" and value.dtype.itemsize != 8
        return ["l", *map(data, value)] if narrow or value.dtype.hasobject else data(value.tolist())
    if isinstance(value, sys.modules[NP].ndarray):
        single = value[()]
    if single.dtype.kind == "f" and single.dtype.itemsize < 8:
        return [str(single.dtype.itemsize), data(float(single))]
    plain = single.item()
    return data(float(plain) if type(plain) is type(single) else plain)


def data_of_number(value):
    """Number as plain data (None if `value` is not a number)."""
    numbers = sys.modules.get("numbers")
    decimal = sys.modules.get("decimal")
    if isinstance(value, (int, getattr(numbers, "Integral", int))):
        return data(int(value))
    if decimal is not None and isinstance(value, decimal.Decimal):
        if not value.is_finite() or abs(value.adjusted()) > LARGEST_EXPONENT:
            return data(float(value))
        return ["q", *map(hex, value.as_integer_ratio())]
    if numbers is not None and isinstance(value, numbers.Rational):
        return ["q", hex(int(value.numerator)), hex(int(value.denominator))]
    if isinstance(value, (float, getattr(numbers, "Real", float))):
        return data(float(value))
    if isinstance(value, (complex, getattr(numbers, "Complex", complex))):
        plain = complex(value)
        return ["c", data(plain.real), data(plain.imag)]
    return None
