"""JSON for pages: strict, in ASCII, and with long texts cut, so that any parser can read it.

Stores are untrusted. They may have NaN, integers that are too large for a browser, or values that
are nested without end. Each such value is replaced by JSON that describes it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from hrm_agent.errors import StoreError

__all__ = [
    "PIECE",
    "SHOWN",
    "NotThere",
    "TextPlace",
    "cut_text",
    "foreign",
    "json_lines",
    "json_text",
    "short",
]

SHOWN, PIECE = 4_000, 1 << 16
"""Maximum characters of a text that are shown at once, and of one piece of its rest."""
_NAME = 500
"""Maximum characters of a name that is shown."""
_WHOLE = 2**53 - 1
"""Largest integer that a browser represents exactly."""
_DEEP = 60
_CUT_OFF = "... nested more deeply"


class NotThere(StoreError):
    """A requested object is not in the store."""


class TextPlace(NamedTuple):
    """Place of a long text, from which the rest can be fetched."""

    item: str
    """Item as `call:ID`, `tool:ID`, `trajectory:ID` and so on."""
    field: str
    """Name of the text within the item."""


def cut_text(text: str | None, item: str, field: str) -> dict[str, Any] | None:
    """JSON of a text for pages, cut if it is long (None for None). `item` and `field` are those of
    `TextPlace`.
    """
    if text is None:
        return None
    found: dict[str, Any] = {"text": text[:SHOWN], "chars": len(text), "cut": len(text) > SHOWN}
    return found | {"blob": TextPlace(item, field)._asdict()} if found["cut"] else found


def short(text: str) -> str:
    """Cut a name after `_NAME` characters."""
    return text if len(text) <= _NAME else f"{text[:_NAME]}..."


def json_text(data: Any) -> str:
    """Strict JSON. Invalid values are replaced, so that a page is shown whatever a store
    contains.
    """
    try:
        return json.dumps(data, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError):
        return json.dumps(foreign(data), allow_nan=False, separators=(",", ":"))


def foreign(value: Any, depth: int = 0) -> Any:
    """Value of a store as JSON: NaN becomes null, an integer that a browser would round becomes
    text.
    """
    match value:
        case None | bool() | str():
            return value
        case int() if -_WHOLE <= value <= _WHOLE:
            return value
        case int():
            bits = value.bit_length()  # Python raises an error for a number of many thousand digits
            return str(value) if bits <= 4_000 else f"an integer of {bits} bits"
        case float():
            return value if math.isfinite(value) else None
        case _ if depth >= _DEEP:
            return _CUT_OFF
        case Mapping():
            items = cast("Mapping[Any, Any]", value).items()
            return {str(name): foreign(item, depth + 1) for name, item in items}
        case list() | tuple() | set() | frozenset():
            return [foreign(item, depth + 1) for item in cast("list[Any]", value)]
        case bytes() | bytearray():
            return f"{len(value)} bytes"
        case _:
            return f"a value of the type {short(type(value).__qualname__)}"


def json_lines(value: Any) -> str:
    """Value as indented JSON text."""
    return json.dumps(foreign(value), indent=2, ensure_ascii=False)
