"""Form of Gemma 4:
`<|tool_call>call:NAME{key:<|"|>text<|"|>,n:3,list:[1,2],o:{k:true}}<tool_call|>`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
    decode_json,
    read_blocks,
    skip_space,
    unclosed,
)
from hrm_agent.models.engine import ParsedTurn

__all__ = ["GEMMA"]

_OPEN = "<|tool_call>"
_CLOSE = "<tool_call|>"
_QUOTE = '<|"|>'
_NAME = re.compile(r"\s*call:([^{}\[\]<>|,\s]+)\s*")
_KEY = re.compile(r"([^:,{}\[\]<]+):")
_WORD = re.compile(r"[^,{}\[\]<]+")
_END_OF_KEY = re.compile(r'<\|"\|>(?=\s*+:)')
_END_OF_TEXT = re.compile(r'<\|"\|>(?=\s*+[,}\]])')
"""Quote that ends a text. The form has no escapes, so a quote only ends the text if a valid
continuation follows.
"""
_NEXT_CALL = re.compile(r"\}\s*+(?:<tool_call\|>\s*+)?<\|tool_call>call:")
"""End of a call followed by the next call. If a text contains this pattern, the text was not
closed.
"""
_WHOLE_END = re.compile(r"\}<tool_call\|>")


def _read(text: str, schemas: Schemas) -> ParsedTurn:
    del schemas
    return read_blocks(text, (_OPEN, _CLOSE), _read_call, whole_end=_WHOLE_END)


def _read_call(scan: Scan, position: int, turn: ParsedTurn) -> int:
    named = _NAME.match(scan.text, position)
    if named is None:
        raise Unreadable("a call begins with call:NAME{")
    name = named.group(1)
    try:
        arguments, end = _object(scan, named.end(), 0)
    except Unreadable as error:
        raise Unreadable(str(error), name=name, reached=error.reached) from None
    if not scan.text.startswith(_CLOSE, end):
        raise Unreadable(unclosed(_CLOSE), name=name, reached=end)
    add_call(name, arguments, f"{_OPEN}{scan.text[position:end]}{_CLOSE}", turn)
    return end + len(_CLOSE)


def _object(scan: Scan, position: int, depth: int) -> tuple[dict[str, Any], int]:
    text = scan.text
    if not text.startswith("{", position):
        raise Unreadable("the arguments are no object", reached=position)
    position = skip_space(text, position + 1)
    found: dict[str, Any] = {}
    while not text.startswith("}", position):
        if text.startswith(_QUOTE, position):
            key, position = _quoted(scan, position, _END_OF_KEY)
            position = skip_space(text, position) + 1
        else:
            named = _KEY.match(text, position)
            if named is None:
                raise Unreadable("an argument has no name", reached=position)
            key = named.group(1).strip()
            position = named.end()
        found[key], position = _value(scan, position, depth)
        position = _separated(text, position, "}")
    return found, position + 1


def _value(scan: Scan, position: int, depth: int) -> tuple[Any, int]:
    text = scan.text
    position = skip_space(text, position)
    if depth > MAX_DEPTH:
        raise Unreadable(TOO_DEEP, reached=position)
    if text.startswith(_QUOTE, position):
        return _quoted(scan, position, _END_OF_TEXT)
    if text.startswith("{", position):
        return _object(scan, position, depth + 1)
    if text.startswith("[", position):
        return _list(scan, position, depth + 1)
    match = _WORD.match(text, position)
    if match is None:
        raise Unreadable("a value is missing", reached=position)
    return _word(match.group().strip()), match.end()


def _word(word: str) -> Any:
    """Value that was written without quotes: JSON, or else text."""
    try:
        value, end = decode_json(word)
    except ValueError:
        return CONSTANTS.get(word, word)  # some templates write Python's constants
    return value if end == len(word) else word


def _list(scan: Scan, position: int, depth: int) -> tuple[list[Any], int]:
    position = skip_space(scan.text, position + 1)
    items: list[Any] = []
    while not scan.text.startswith("]", position):
        item, position = _value(scan, position, depth)
        items.append(item)
        position = _separated(scan.text, position, "]")
    return items, position + 1


def _separated(text: str, position: int, close: str) -> int:
    """Position of the next item, or of the end."""
    position = skip_space(text, position)
    if text.startswith(",", position):
        return skip_space(text, position + 1)
    if not text.startswith(close, position):
        raise Unreadable(f"a value is not followed by a comma or {close}", reached=position)
    return position


def _quoted(scan: Scan, position: int, end: re.Pattern[str]) -> tuple[str, int]:
    begin = position + len(_QUOTE)
    found = scan.find(end, begin)
    following = scan.find(_NEXT_CALL, begin)
    if found < 0 or 0 <= following < found:
        raise Unreadable(f"a string is not closed by {_QUOTE}", reached=begin)
    return scan.text[begin:found], found + len(_QUOTE)


def _write(calls: Sequence[Mapping[str, Any]]) -> str:
    return "".join(f"{_OPEN}call:{call['name']}{_written(call['args'])}{_CLOSE}" for call in calls)


def _written(value: Any) -> str:
    match value:
        case str():
            return f"{_QUOTE}{value}{_QUOTE}"
        case Mapping():
            items = cast("Mapping[str, Any]", value).items()
            return "{" + ",".join(f"{key}:{_written(item)}" for key, item in items) + "}"
        case list() | tuple():
            return "[" + ",".join(_written(item) for item in cast("Sequence[Any]", value)) + "]"
        case bool() | None:
            return {True: "true", False: "false", None: "null"}[value]
        case _:
            return str(value)


GEMMA = CallForm("gemma", (_OPEN,), (_OPEN, _CLOSE, _QUOTE), _read, _write)
