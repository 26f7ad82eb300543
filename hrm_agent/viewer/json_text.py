"""What a page is sent, as JSON that any parser reads: strict, in ASCII, with long texts cut.

A store is foreign data. Its numbers may be no numbers, its integers longer than a browser counts,
its values nested without end: each is turned here into something that is JSON and says what it was.
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
"""Characters of a text that are shown at once, and of a piece of the rest."""
_NAME = 500
"""Characters of what is shown as a name."""
_WHOLE = 2**53 - 1
"""The largest integer that a browser counts to."""
_DEEP = 60
_CUT_OFF = "... nested more deeply"


class NotThere(StoreError):
    """What was asked for is not in the store."""


class TextPlace(NamedTuple):
    """Where the rest of a long text can be had."""

    item: str
    """`call:ID`, `tool:ID`, `trajectory:ID` and so on."""
    field: str
    """Which text of it."""


def cut_text(text: str | None, item: str, field: str) -> dict[str, Any] | None:
    """A text as pages get it; None stays None. `item` and `field`: as in `TextPlace`."""
    if text is None:
        return None
    found: dict[str, Any] = {"text": text[:SHOWN], "chars": len(text), "cut": len(text) > SHOWN}
    return found | {"blob": TextPlace(item, field)._asdict()} if found["cut"] else found


def short(text: str) -> str:
    """A name, of which nobody has a longer one than `_NAME` unless to annoy."""
    return text if len(text) <= _NAME else f"{text[:_NAME]}..."


def json_text(data: Any) -> str:
    """Strict JSON. What is no JSON after all is replaced, so that a page is shown whatever a store
    holds.
    """
    try:
        return json.dumps(data, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError):
        return json.dumps(foreign(data), allow_nan=False, separators=(",", ":"))


def foreign(value: Any, depth: int = 0) -> Any:
    """A value of a store as JSON: NaN is null, an integer that a browser would round is a text."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return value if -_WHOLE <= value <= _WHOLE else _digits(value)
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


def _digits(value: int) -> str:
    """Python refuses to spell integers of many thousand digits."""
    bits = value.bit_length()
    return str(value) if bits <= 4_000 else f"an integer of {bits} bits"


def json_lines(value: Any) -> str:
    """A value as a text for people."""
    return json.dumps(foreign(value), indent=2, ensure_ascii=False)
