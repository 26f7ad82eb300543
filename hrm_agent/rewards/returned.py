"""Comparison of a call's value, as the sandbox reports it, with the value that a test expects.

The reported value should be in the form of `hrm_agent.rewards.inside.calls.data`. But it is only a
claim of the code under test, and may be any JSON. So only the parts that the expected value has are
read, and any irregularity makes the values unequal.

Values are equal if Python finds them equal, with these exceptions:

* Types that `hrm_agent.rewards.inside` reports as a list (list, tuple, range, deque, UserList,
  array, array of numpy) count as lists, and keys of mappings also match by their text, as in JSON.
* nan equals nan.
* True and False by themselves are not numbers.
* A number of single precision equals any float that rounds to it, except 0.
* A fraction or decimal equals the float that it rounds to.

Integers, keys, members of sets and numbers of half precision are compared exactly.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from fractions import Fraction
from typing import Any, cast

__all__ = ["is_returned"]

_Number = int | float | complex | Fraction


def is_returned(shown: Any, wanted: Any) -> bool:
    """True if the reported value `shown` equals `wanted`, a Python value."""
    if isinstance(shown, bool) != isinstance(wanted, bool):
        return False
    try:
        return _same(shown, wanted)
    except Exception:  # a claim that breaks the comparison is not equal
        return False


def _same(shown: Any, wanted: Any) -> bool:
    if wanted is None or isinstance(wanted, str):
        return type(shown) is type(wanted) and shown == wanted
    if isinstance(wanted, bytes):
        return _tagged(shown, "b") == [wanted.hex()]
    if isinstance(wanted, (int, float, complex)):
        return _same_number(shown, wanted)
    if isinstance(wanted, (list, tuple)):
        items = _tagged(shown, "l")
        expected = cast("Sequence[Any]", wanted)
        return (
            items is not None and len(items) == len(expected) and all(map(_same, items, expected))
        )
    if isinstance(wanted, dict):
        return _same_mapping(_tagged(shown, "d"), cast("Mapping[Any, Any]", wanted))
    if isinstance(wanted, (set, frozenset)):
        items = _tagged(shown, "s")
        members = cast("AbstractSet[Any]", wanted)
        return items is not None and set(map(_hashable, items)) == set(
            map(_hashable_as_told, members)
        )
    return False


def _tagged(shown: Any, tag: str) -> list[Any] | None:
    """Items of a reported list after `tag` (None if `tag` is not the first item)."""
    if isinstance(shown, list) and shown and shown[0] == tag:
        return cast("list[Any]", shown)[1:]
    return None


def _same_mapping(pairs: list[Any] | None, wanted: Mapping[Any, Any]) -> bool:
    if pairs is None or len(pairs) != len(wanted):
        return False
    for told_key, wanted_key in ((_hashable, _hashable_as_told), (_key_text, str)):
        found = {told_key(key): item for key, item in pairs}
        expected = {wanted_key(key): item for key, item in wanted.items()}
        if len(found) == len(wanted) and found.keys() == expected.keys():
            return all(_same(found[key], expected[key]) for key in expected)
    return False


def _same_number(shown: Any, wanted: complex) -> bool:
    found = _number(shown)
    if found is None:
        return False
    if found == wanted or not isinstance(wanted, float):
        return found == wanted
    if isinstance(found, float) and math.isnan(wanted):
        return math.isnan(found)
    if _tagged(shown, "4"):
        return found != 0 and struct.unpack("f", struct.pack("f", wanted))[0] == found
    return isinstance(found, Fraction) and float(found) == wanted


def _number(shown: Any) -> _Number | None:
    """Reported number (None if the value is not a number). True and False are the numbers 1 and
    0.
    """
    if isinstance(shown, (bool, int, float)):
        return shown
    match shown:
        case ["i", str(digits)]:
            return int(digits, 16)
        case ["f", ("inf" | "-inf" | "nan") as name]:
            return float(name)
        case ["2" | "4", narrow]:  # a number of half or single precision, by its size in bytes
            return _number(narrow)
        case ["q", str(above), str(below)]:
            return Fraction(int(above, 16), int(below, 16))
        case ["c", real, imaginary]:
            return complex(cast("float", _number(real)), cast("float", _number(imaginary)))
        case _:
            return None


def _key_text(shown: Any) -> str:
    """Text of a reported key. In JSON, a key has no other type."""
    return shown if isinstance(shown, str) else str(_value(shown))


def _value(shown: Any) -> Any:
    """Reported key as a Python value."""
    if (items := _tagged(shown, "l")) is not None:
        return tuple(map(_value, items))
    if (items := _tagged(shown, "s")) is not None:
        return frozenset(map(_value, items))
    if shown is None or isinstance(shown, str):
        return shown
    if (octets := _tagged(shown, "b")) is not None:
        return bytes.fromhex(octets[0])
    if isinstance(shown, bool):
        return shown
    found = _number(shown)
    if found is None:
        raise ValueError("it is no key")
    return found


def _hashable(shown: Any) -> Any:
    """Hashable form of a reported value. Equal members of a set have equal forms."""
    if (items := _tagged(shown, "l")) is not None:
        return ("l", *map(_hashable, items))
    if (items := _tagged(shown, "s")) is not None:
        return frozenset(map(_hashable, items))
    return _value(shown)


def _hashable_as_told(value: Any) -> Any:
    return _hashable(_as_told(value))


def _as_told(value: Any) -> Any:
    """Member of a wanted set, in the form that the sandbox reports."""
    if isinstance(value, tuple):
        return ["l", *map(_as_told, cast("tuple[Any, ...]", value))]
    if isinstance(value, frozenset):
        return ["s", *map(_as_told, cast("frozenset[Any]", value))]
    return ["b", value.hex()] if isinstance(value, bytes) else value
