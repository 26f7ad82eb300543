"""Values of untrusted spans: JSON inside texts, attributes with dotted names, times, numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

from hrm_agent.errors import StoreError
from hrm_agent.trajectory.formats.shared.json_documents import parsed, refused

__all__ = [
    "Tree",
    "as_float",
    "as_int",
    "as_text",
    "at",
    "decoded",
    "elements",
    "mapping",
    "nested",
    "seconds",
    "text_at",
]

Tree = dict[str, Any]
"""Attributes by the parts of their dotted names. A value whose name is also the beginning of other
names is under the key `""`.
"""
_MOST_PARTS = 32
"""Maximum number of parts of an attribute's name."""
_MOST_ELEMENTS = 100_000
"""Maximum index in an attribute's name."""
_LAST_SECOND = 253_402_300_800
"""Unix time of the year 10000."""
_UNITS = ((10**11, 1), (10**14, 1e3), (10**17, 1e6))
"""Counts of time below the first number have the second one in a second."""
_LONG_FRACTION = re.compile(r"(\.\d{6})\d+")


def mapping(value: Any) -> dict[str, Any]:
    """`value` if it is an object, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def nested(attributes: Mapping[str, Any], place: str) -> Tree:
    """Attributes as a tree by their dotted names. Names inside of values are left as they are."""
    tree: Tree = {}
    for name, value in attributes.items():
        parts = name.split(".", _MOST_PARTS)
        if len(parts) > _MOST_PARTS:
            refused(place, "attributes", f"the name {name[:80]!r}... has too many parts")
        inner = tree
        for part in parts[:-1]:
            held = inner.get(part)
            if not isinstance(held, dict):
                held = inner[part] = {} if held is None else {"": held}
            inner = cast("Tree", held)
        held = inner.get(parts[-1])
        if isinstance(held, dict) and isinstance(value, dict):
            held.update(cast("Tree", value))
        elif isinstance(held, dict):
            held[""] = value
        else:
            inner[parts[-1]] = dict(cast("Tree", value)) if isinstance(value, dict) else value
    return tree


def at(tree: Any, path: str) -> Any:
    """Value or subtree at a dotted path (None if there is none)."""
    for part in path.split("."):
        if not isinstance(tree, dict):
            return None
        tree = cast("Tree", tree).get(part)
    return tree


def text_at(tree: Tree, *paths: str) -> str:
    """First text at one of the paths (empty if all are missing)."""
    for path in paths:
        value = at(tree, path)
        if isinstance(value, dict):
            value = cast("Tree", value).get("")
        if isinstance(value, (str, int, float)) and value != "":
            return str(value)
    return ""


def elements(value: Any) -> list[Any]:
    """Elements of a list, in a tree as well, where its indexes are keys."""
    if isinstance(value, list):
        return cast("list[Any]", value)
    held = cast("Tree", value) if isinstance(value, dict) else {}
    numbered = {
        int(key): one
        for key, one in held.items()
        if key.isascii() and key.isdigit() and len(key) < 7 and int(key) < _MOST_ELEMENTS
    }
    return [numbered[index] for index in sorted(numbered)]


def decoded(value: Any, place: str) -> Any:
    """`value`, decoded if it is the JSON text of an object, a list or a text. Other texts are left
    as they are. Raises `StoreError` for JSON that is nested too deeply.
    """
    if not isinstance(value, str) or value[:1] not in ("{", "[", '"'):
        return value
    try:
        return parsed(value.encode(), place, nan=True)
    except (StoreError, UnicodeEncodeError) as error:
        if "nested" in str(error) or "surrogate" in str(error):
            raise
        return value


def as_text(value: Any) -> str:
    """Text of a value."""
    return value if isinstance(value, str) else "" if value is None else str(value)


def as_int(value: Any) -> int | None:
    """Count from 0, also if it is given as text or as a whole float (None for other values)."""
    number = as_float(value)
    whole = number is not None and 0 <= number < 2**53 and number == int(number)
    return int(number) if whole and number is not None else None


def as_float(value: Any) -> float | None:
    """Finite number, also if it is given as text (None for other values)."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value[:40] if isinstance(value, str) else value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < 1e300 else None


def seconds(value: Any, place: str, name: str) -> float | None:
    """Unix time of a count (a number, or digits) or of an ISO 8601 text, in which a time without a
    zone is UTC (None for no time). A count in a field of OTLP, named `...Nano`, is of nanoseconds.
    Others are of nanoseconds, microseconds, milliseconds or seconds, by their size: each unit
    covers the years 1973 to 5138.
    """
    if value is None or value in ("", 0, "0"):
        return None
    moment: float | None = None
    count = isinstance(value, int) and not isinstance(value, bool)
    if count or (isinstance(value, str) and value.isascii() and value.isdecimal()):
        number = int(str(value)[:24])  # longer ones are out of range as well
        units = () if name.endswith("Nano") else _UNITS
        moment = number / next((one for most, one in units if number < most), 1e9)
    elif isinstance(value, str) and value.isascii():
        try:
            found = datetime.fromisoformat(_LONG_FRACTION.sub(r"\1", value[:64]))
            moment = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            moment = None
    if moment is None or not 0 <= moment < _LAST_SECOND:
        refused(place, name, f"{str(value)[:60]!r} is not a time from 1970 to 9999")
    return moment
