r"""Forms of Python: calls in a list. LFM2 writes marks around the list, Llama 4 does not.

`<|tool_call_start|>[search(query='x'), python(code='print(1)')]<|tool_call_end|>`. Arguments are
literals. JSON's `true`, `false` and `null` are accepted, too, since templates write them. Nothing
is evaluated. Some templates write strings without escapes. If calls are not valid Python, a string
ends at a quote that precedes a valid continuation of an argument, and its backslashes are literal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from hrm_agent.models.codec.calls.form import (
    CONSTANTS,
    MAX_DEPTH,
    TOO_DEEP,
    CallForm,
    Scan,
    Schemas,
    Unreadable,
    add_call,
    add_invalid,
    read_blocks,
    unclosed,
)
from hrm_agent.models.engine import ParsedTurn

__all__ = ["PYTHONIC", "PYTHONIC_BARE"]

_OPEN = "<|tool_call_start|>"
_CLOSE = "<|tool_call_end|>"
_SPACE = re.compile(r"\s*+")
_NAME = re.compile(r"[A-Za-z_][\w.\-]*+")
_KEY = re.compile(r"([A-Za-z_]\w*+)\s*+=(?!=)")
_WORD = re.compile(r"[A-Za-z_]\w*+")
_NUMBER = re.compile(r"[+-]?(?:0[xXoObB]\w+|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?)")
_STRING = re.compile(
    r"""([rRuU]?)(?:\'\'\'([^\\']*(?:(?:\\.|'(?!''))[^\\']*)*)\'\'\'|"{3}([^\\"]*(?:(?:\\.|"(?!""))[^\\"]*)*)"{3}
        |'(?!'')([^\\'\n]*(?:\\.[^\\'\n]*)*)'|"(?!"")([^\\"\n]*(?:\\.[^\\"\n]*)*)")""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPE = re.compile(
    r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U(00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4})|(.))",
    re.DOTALL,
)
_LETTERS = {**dict(zip("ntrbfva\\'\"", "\n\t\r\b\f\v\a\\'\"", strict=True)), "\n": ""}
_BARE_CALL = re.compile(r"\[\s*[A-Za-z_][\w.\-]*\(\s*(?:[A-Za-z_]\w*\s*=(?!=)|\)\s*[,\]])")
_AFTER_CALL = r"\)\s*+(?:,\s*+[A-Za-z_][\w.\-]*+\(|(?:\]\s*+)?(?:<\|tool_call_end\|>|\Z))"
_LOOSE_END = {
    quote: re.compile(rf"{quote}(?=\s*+(?:,\s*+[A-Za-z_]\w*+=|{_AFTER_CALL}))")
    for quote in ("'", '"')
}
"""Quote that ends a string without escapes."""
_NEXT_CALL = re.compile(
    r"\)\s*+(?:\]\s*+)?(?:<\|tool_call_end\|>\s*+)?<\|tool_call_start\|>\s*+\[?\s*+[A-Za-z_][\w.\-]*+\("
)
"""End of calls followed by the next calls. If a string without escapes contains this pattern, the
string was not closed.
"""
_WHOLE_END = re.compile(r"\)[\s,\]]*+<\|tool_call_end\|>")

_Call = tuple[str, dict[str, Any], str]
"""Name, arguments, and the raw text of one call."""


def _read(text: str, schemas: Schemas) -> ParsedTurn:
    del schemas
    return read_blocks(text, (_OPEN, _CLOSE), _read_call, whole_end=_WHOLE_END)


def _read_call(scan: Scan, position: int, turn: ParsedTurn) -> int:
    calls, end = _calls(
        scan, position, lambda at: scan.text.startswith(_CLOSE, at), unclosed(_CLOSE)
    )
    for name, arguments, raw in calls:
        add_call(name, arguments, f"{_OPEN}{raw}{_CLOSE}", turn)
    return end + len(_CLOSE)


def _read_bare(text: str, schemas: Schemas) -> ParsedTurn:
    del schemas
    stripped = text.strip()
    if not _BARE_CALL.match(stripped):
        return ParsedTurn(text)
    turn = ParsedTurn("")
    try:
        calls, _ = _calls(
            Scan(stripped), 0, lambda at: at == len(stripped), "text stands after the calls"
        )
    except Unreadable as error:
        add_invalid(None, stripped, str(error), turn)
        return turn
    for name, arguments, raw in calls:
        add_call(name, arguments, raw, turn)
    return turn


def _calls(
    scan: Scan, position: int, ends: Callable[[int], bool], unended: str
) -> tuple[list[_Call], int]:
    """Calls from `position` on, and the position after them, for which `ends` has to be true."""
    try:
        return _Reader(scan, loose=False).calls(position, ends, unended)
    except Unreadable as error:
        try:
            return _Reader(scan, loose=True).calls(position, ends, unended)
        except Unreadable as other:
            reached = max(error.reached, other.reached)
            raise Unreadable(
                f"the calls are no list of Python calls: {error}", reached=reached
            ) from None


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reader whose methods take a position and return a value with the position after it."""

    scan: Scan
    loose: bool
    """True if arguments that are strings hold no escapes."""

    def calls(
        self, position: int, ends: Callable[[int], bool], unended: str
    ) -> tuple[list[_Call], int]:
        text = self.scan.text
        found = list[_Call]()
        position = self._space(position)
        listed = text.startswith("[", position)
        position = self._space(position + listed)
        while not found or not (text.startswith("]", position) if listed else ends(position)):
            start = position
            name, arguments, position = self._call(position)
            raw = text[start:position]
            found.append((name, arguments, f"[{raw}]" if listed else raw))
            position = self._comma(position, "]" if listed else "")
        position = self._space(position + listed)
        if not ends(position):
            raise Unreadable(unended, reached=position)
        return found, position

    def _call(self, position: int) -> tuple[str, dict[str, Any], int]:
        text = self.scan.text
        named = _NAME.match(text, position)
        if named is None or not text.startswith("(", named.end()):
            raise Unreadable("a call is NAME(ARGUMENT=VALUE)", reached=position)
        name = named.group()
        position = self._space(named.end() + 1)
        arguments: dict[str, Any] = {}
        while not text.startswith(")", position):
            key = _KEY.match(text, position)
            if key is None:
                raise Unreadable(f"{name}: arguments are given by name", reached=position)
            arguments[key.group(1)], position = self._argument(self._space(key.end()))
            position = self._comma(position, ")")
        return name, arguments, position + 1

    def _argument(self, position: int) -> tuple[Any, int]:
        quote = self.scan.text[position : position + 1]
        if not self.loose or quote not in _LOOSE_END:
            return self._value(position, 0)
        end = self.scan.find(_LOOSE_END[quote], position + 1)
        following = self.scan.find(_NEXT_CALL, position + 1)
        if end < 0 or 0 <= following < end:
            raise Unreadable("a string has no end", reached=position)
        return self.scan.text[position + 1 : end], end + 1

    def _value(self, position: int, depth: int) -> tuple[Any, int]:
        text = self.scan.text
        if depth > MAX_DEPTH:
            raise Unreadable(TOO_DEEP, reached=position)
        match text[position : position + 1]:
            case "[":
                items, _, position = self._items(position + 1, "]", depth)
                return items, position
            case "(":
                items, comma, position = self._items(position + 1, ")", depth)
                return items[0] if len(items) == 1 and not comma else items, position
            case "{":
                return self._dict(position + 1, depth)
            case _:
                return self._scalar(position)

    def _items(self, position: int, close: str, depth: int) -> tuple[list[Any], bool, int]:
        """Items, True if a comma follows the last one, and the position after the closing
        bracket.
        """
        items = list[Any]()
        comma = False
        position = self._space(position)
        while not self.scan.text.startswith(close, position):
            item, position = self._value(position, depth + 1)
            items.append(item)
            comma = self.scan.text.startswith(",", self._space(position))
            position = self._comma(position, close)
        return items, comma, position + 1

    def _dict(self, position: int, depth: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        position = self._space(position)
        while not self.scan.text.startswith("}", position):
            key, position = self._scalar(position)
            position = self._space(position)
            if not self.scan.text.startswith(":", position):
                raise Unreadable("a key has no value", reached=position)
            found[str(key)], position = self._value(self._space(position + 1), depth + 1)
            position = self._comma(position, "}")
        return found, position + 1

    def _scalar(self, position: int) -> tuple[Any, int]:
        text = self.scan.text
        if (match := _STRING.match(text, position)) is not None:
            return self._strings(match)
        if (match := _WORD.match(text, position)) is not None and match.group() in CONSTANTS:
            return CONSTANTS[match.group()], match.end()
        if match is None and (match := _NUMBER.match(text, position)) is not None:
            return _number(match.group(), position), match.end()
        string = text[position : position + 1] in ("'", '"')
        raise Unreadable(
            "a string has no end" if string else "an argument is not a literal", reached=position
        )

    def _strings(self, match: re.Match[str]) -> tuple[str, int]:
        """Join consecutive strings."""
        parts = list[str]()
        following: re.Match[str] | None = match
        while following is not None:
            match = following
            body = next(group for group in match.groups()[1:] if group is not None)
            parts.append(body if match.group(1) in ("r", "R") else _ESCAPE.sub(_unescaped, body))
            following = _STRING.match(self.scan.text, self._space(match.end()))
        return "".join(parts), match.end()

    def _comma(self, position: int, close: str) -> int:
        """Position after the comma at `position`, or `position` itself at the closing bracket."""
        position = self._space(position)
        if self.scan.text.startswith(",", position):
            return self._space(position + 1)
        if close and not self.scan.text.startswith(close, position):
            raise Unreadable(f"neither a comma nor {close} follows", reached=position)
        return position

    def _space(self, position: int) -> int:
        match = _SPACE.match(self.scan.text, position)
        return position if match is None else match.end()


def _unescaped(match: re.Match[str]) -> str:
    octal, *codes, letter = match.groups()
    if letter is not None:
        return _LETTERS.get(letter, f"\\{letter}")
    return chr(int(octal, 8) if octal else int(next(filter(None, codes)), 16))


def _number(text: str, position: int) -> int | float:
    try:
        broken = any(sign in text for sign in ".eE") and not text.lstrip("+-").startswith(
            ("0x", "0X")
        )
        return float(text) if broken else int(text, 0)
    except ValueError as error:
        raise Unreadable(f"an argument is not a literal: {error}", reached=position) from None


def _write_list(calls: Sequence[Mapping[str, Any]]) -> str:
    written = (
        f"{call['name']}({', '.join(f'{k}={_written(v)}' for k, v in call['args'].items())})"
        for call in calls
    )
    return f"[{', '.join(written)}]"


def _written(value: Any) -> str:
    """Format a literal. In a string, only characters that could end it are escaped."""
    match value:
        case str():
            escaped = (
                value.replace("\\", "\\\\")
                .replace("'", "\\'")
                .replace("\n", "\\n")
                .replace("\r", "\\r")
            )
            return f"'{escaped}'"
        case Mapping():
            items = cast("Mapping[str, Any]", value).items()
            return (
                "{" + ", ".join(f"{_written(key)}: {_written(item)}" for key, item in items) + "}"
            )
        case list() | tuple():
            return f"[{', '.join(map(_written, cast('Sequence[Any]', value)))}]"
        case _:
            return repr(value)


def _write(calls: Sequence[Mapping[str, Any]]) -> str:
    return f"{_OPEN}{_write_list(calls)}{_CLOSE}"


PYTHONIC = CallForm("pythonic", (_OPEN,), (_OPEN, _CLOSE), _read, _write)
PYTHONIC_BARE = CallForm("pythonic_bare", (), (), _read_bare, _write_list, words="", opening=("[",))
