"""CSS declarations that decide whether an element is shown, as far as browsers accept them as
valid.

A browser ignores an invalid declaration, so the previous one holds: `display:none;display:x` hides.
Therefore only values on a list of valid ones count. Computed values (`var()`, `calc()`) are valid
and count as shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

__all__ = ["declared", "is_nothing", "size_unit"]

_OF_ALL = {"inherit", "initial", "revert", "revert-layer", "unset"}
# fmt: off
_DISPLAY = {
    "none", "contents", "block", "inline", "flow", "flow-root", "inline-block", "flex", "inline-flex", "grid",
    "inline-grid", "table", "inline-table", "table-row", "table-row-group", "table-header-group", "table-footer-group",
    "table-column", "table-column-group", "table-cell", "table-caption", "list-item", "ruby", "ruby-text", "math",
    "-webkit-box", "-webkit-inline-box", "-webkit-flex", "-webkit-inline-flex",
}
_UNITS = {
    "%", "em", "rem", "ex", "rex", "ch", "rch", "cap", "rcap", "ic", "ric", "lh", "rlh", "cm", "mm", "q", "in", "pt",
    "pc", "px", "cqw", "cqh", "cqi", "cqb", "cqmin", "cqmax",
    *(f"{kind}{side}" for kind in ("v", "sv", "lv", "dv") for side in ("w", "h", "i", "b", "min", "max")),
}
_SIZES = {
    "xx-small", "x-small", "small", "medium", "large", "x-large", "xx-large", "xxx-large", "larger", "smaller", "math",
}
_BEFORE_SIZE = {
    "normal", "italic", "oblique", "small-caps", "bold", "bolder", "lighter", "ultra-condensed", "extra-condensed",
    "condensed", "semi-condensed", "semi-expanded", "expanded", "extra-expanded", "ultra-expanded",
}
# fmt: on
_OUTSIDE, _INSIDE = (
    {"block", "inline"},
    {
        "flow",
        "flow-root",
        "table",
        "flex",
        "grid",
        "ruby",
        "math",
    },
)
_SYSTEM_FONTS = {"caption", "icon", "menu", "message-box", "small-caption", "status-bar"}
_NUMBER = re.compile(r"([+-]?(?:\d++(?:\.\d++)?+|\.\d++)(?:e[+-]?\d++)?+)([a-z%]*+)")
_FUNCTION = re.compile(
    r"(?:calc|clamp|max|min)\((?:[\s()+*/,-]|[\d.]++(?:e[+-]?\d++)?+[a-z%]*+|calc|clamp|max|min)*+"
)
_LOOKED_UP = re.compile(r"(?:var|env)\(")
_ESCAPE = re.compile(r"\\(?:([0-9a-f]{1,6})\s?|([^\n]))", re.IGNORECASE)


def declared(text: str) -> Iterator[tuple[str, str, bool]]:
    """Yield property, value and importance of valid declarations that may hide something. `font` is
    yielded as `font-size`.
    """
    for declaration in text.split(";"):
        name, _, value = declaration.partition(":")
        name, (value, mark, importance) = _plain(name), _plain(value).partition("!")
        if name not in _VALID or (mark and importance.strip() != "important"):
            continue
        value = value.strip()
        if name == "font":
            name, value = "font-size", _size_in(value)
        if value and (value in _OF_ALL or _LOOKED_UP.search(value) or _VALID[name](value)):
            yield name, value, bool(mark)


def is_nothing(value: str) -> bool:
    """True if a number or a size is 0 or less. A negative opacity is clamped to 0."""
    match = _NUMBER.fullmatch(value)
    return match is not None and float(match[1]) <= 0


def size_unit(value: str) -> str | None:
    """Unit of a numeric size (None for any other value)."""
    match = _NUMBER.fullmatch(value)
    return match[2] if match else None


def _plain(text: str) -> str:
    if "\\" in text:
        text = _ESCAPE.sub(lambda found: _character(found[1]) if found[1] else found[2], text)
    return text.strip().lower()


def _character(digits: str) -> str:
    code = int(digits, 16)
    return chr(code) if 0 < code < 0xD800 or 0xDFFF < code < 0x110000 else "\ufffd"


def _is_display(value: str) -> bool:
    words = value.split()
    inside = [word for word in words if word in _INSIDE]
    of_list = words.count("list-item")
    if len(words) < 2:
        return value in _DISPLAY
    known = sum(word in _OUTSIDE for word in words), len(inside), of_list
    return (
        max(known) == 1
        and sum(known) == len(words)
        and not (of_list and {*inside} - {"flow", "flow-root"})
    )


def _is_computed(value: str) -> bool:
    return value.endswith(")") and _FUNCTION.fullmatch(value) is not None


def _is_opacity(value: str) -> bool:
    return size_unit(value) in ("", "%") or _is_computed(value)


def _is_size(value: str) -> bool:
    match = _NUMBER.fullmatch(value)
    if match is None:
        return value in _SIZES or _is_computed(value)
    number = float(match[1])
    return number >= 0 and (match[2] in _UNITS or (number == 0 and not match[2]))


def _size_in(font: str) -> str:
    """Font size that a `font` value sets (empty if the value is invalid)."""
    if font in _OF_ALL or _LOOKED_UP.search(font):
        return font
    if font in _SYSTEM_FONTS:
        return "medium"
    words = re.sub(r"\s*/\s*", "/", font).split()
    for place, word in enumerate(words):
        size, slash, height = word.partition("/")
        if _is_size(size) and (not slash or _is_line_height(height)):
            return size if words[place + 1 :] else ""
        if "(" in word:  # a size of several words, which is computed
            return "medium"
        if word not in _BEFORE_SIZE and not _is_weight_or_angle(word):
            return ""
    return ""


def _is_line_height(value: str) -> bool:
    number = _NUMBER.fullmatch(value)
    return value == "normal" or "(" in value or (number is not None and number[2] in {"", *_UNITS})


def _is_weight_or_angle(word: str) -> bool:
    match = _NUMBER.fullmatch(word)
    if match is None:
        return False
    return match[2] in ("deg", "grad", "rad", "turn") or (
        not match[2] and 1 <= float(match[1]) <= 1000
    )


_VALID: Mapping[str, Callable[[str], bool]] = {
    "content-visibility": {"auto", "hidden", "visible"}.__contains__,
    "display": _is_display,
    "font": lambda _: True,
    "font-size": _is_size,
    "opacity": _is_opacity,
    "visibility": {"collapse", "hidden", "visible"}.__contains__,
}
"""Validity check of a value, by property."""
