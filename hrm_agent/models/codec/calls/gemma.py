"""Gemma 4's form: `<|tool_call>call:NAME{key:<|"|>text<|"|>,n:3,list:[1,2],o:{k:true}}<tool_call|>`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from hrm_agent.models.codec.calls.form import CallForm, Schemas, add_call, add_invalid, decode_json, unclosed
from hrm_agent.models.engine import ParsedTurn

__all__ = ["GEMMA"]

_OPEN, _CLOSE, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_NAME = re.compile(r"\s*call:([^{\s]+)\s*")
_KEY = re.compile(r"\s*([^:,{}\[\]]+?)\s*:")
_WORD = re.compile(r"[^,{}\[\]<]+")
_DEPTH = 100


class _Unreadable(Exception):
    """Raised with the reason that the policy is shown."""


def _read(text: str, schemas: Schemas) -> ParsedTurn:
    del schemas
    kept, turn, position = list[str](), ParsedTurn(""), 0
    while (start := text.find(_OPEN, position)) >= 0:
        kept.append(text[position:start])
        position = _read_block(text, start, turn)
    if not kept:
        return ParsedTurn(text)
    kept.append(text[position:])
    return ParsedTurn("".join(kept).strip(), turn.tool_calls, turn.invalid_tool_calls)


def _read_block(text: str, start: int, turn: ParsedTurn) -> int:
    named = _NAME.match(text, start + len(_OPEN))
    name = named.group(1) if named else None
    try:
        if named is None:
            raise _Unreadable("a call begins with call:NAME{")
        arguments, end = _object(text, named.end(), 0)
        if not text.startswith(_CLOSE, end):
            raise _Unreadable(unclosed(_CLOSE))
    except _Unreadable as error:
        return _undecodable(text, start, name, str(error), turn)
    add_call(str(name), arguments, text[start : end + len(_CLOSE)], turn)
    return end + len(_CLOSE)


def _undecodable(text: str, start: int, name: str | None, why: str, turn: ParsedTurn) -> int:
    end = text.find(_CLOSE, start)
    following = text.find(_OPEN, start + 1)
    if end < 0 or 0 <= following < end:
        end, why = following if following >= 0 else len(text), unclosed(_CLOSE)
    else:
        end += len(_CLOSE)
    add_invalid(name, text[start:end].strip(), why, turn)
    return end


def _object(text: str, position: int, depth: int) -> tuple[dict[str, Any], int]:
    if not text.startswith("{", position) or depth > _DEPTH:
        raise _Unreadable("the arguments are no object")
    position += 1
    found: dict[str, Any] = {}
    while not text.startswith("}", position):
        if text.startswith(_QUOTE, position):
            key, position = _string(text, position)
            if not text.startswith(":", position):
                raise _Unreadable("an argument has no name")
            position += 1
        else:
            named = _KEY.match(text, position)
            if named is None:
                raise _Unreadable("an argument has no name")
            key, position = named.group(1), named.end()
        found[key], position = _value(text, position, depth)
        position = _separated(text, position, "}")
    return found, position + 1


def _value(text: str, position: int, depth: int) -> tuple[Any, int]:
    if text.startswith(_QUOTE, position):
        return _string(text, position)
    if text.startswith("{", position):
        return _object(text, position, depth + 1)
    if text.startswith("[", position):
        return _list(text, position, depth + 1)
    word = _WORD.match(text, position)
    if word is None:
        raise _Unreadable("a value is missing")
    try:
        value, end = decode_json(word.group().strip())
    except ValueError:
        return word.group().strip(), word.end()
    return (value if end == len(word.group().strip()) else word.group().strip()), word.end()


def _list(text: str, position: int, depth: int) -> tuple[list[Any], int]:
    if depth > _DEPTH:
        raise _Unreadable("the arguments are nested too deeply")
    position += 1
    items: list[Any] = []
    while not text.startswith("]", position):
        item, position = _value(text, position, depth)
        items.append(item)
        position = _separated(text, position, "]")
    return items, position + 1


def _separated(text: str, position: int, close: str) -> int:
    """The position of the next item, or of the end."""
    if text.startswith(",", position):
        return position + 1
    if not text.startswith(close, position):
        raise _Unreadable(f"a value is not followed by a comma or {close}")
    return position


def _string(text: str, position: int) -> tuple[str, int]:
    end = text.find(_QUOTE, position + len(_QUOTE))
    if end < 0:
        raise _Unreadable(f"a string is not closed by {_QUOTE}")
    return text[position + len(_QUOTE) : end], end + len(_QUOTE)


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
