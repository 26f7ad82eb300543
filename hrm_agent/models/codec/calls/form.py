"""A family's way of writing tool calls, and how what it wrote becomes calls with checked arguments.

Readers share three rules. An argument may hold anything, the closing tag included. A call that cannot be read is no
exception but data: the policy is shown why, and the record keeps the raw text. The text around calls is the content.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from hrm_agent.models.engine import ParsedTurn
from hrm_agent.unicode import without_surrogates

__all__ = [
    "CallForm",
    "Schemas",
    "add_call",
    "add_invalid",
    "add_named_call",
    "as_declared",
    "decode_json",
    "json_text",
    "schemas_of",
    "skip_space",
    "unclosed",
]

Schemas = Mapping[str, Mapping[str, Any]]
"""JSON schemas of the offered tools' parameters, by the tool's name."""

_MAX_DEPTH = 64
"""Levels of arguments; msgpack holds some more, but a message stands in other things."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """One way of writing calls."""

    name: str
    """Name for `?tools=`."""
    marks: tuple[str, ...]
    """Spellings with which a call begins; an answer is shown up to the first one."""
    inside: tuple[str, ...]
    """Spellings that may be control tokens of a vocabulary and yet stand inside an answer."""
    read: Callable[[str, Schemas], ParsedTurn]
    """Takes an answer's text apart."""
    write: Callable[[Sequence[Mapping[str, Any]]], str]
    """Text of calls `{"name": str, "args": dict}`, for templates that have no place for them."""
    ends: tuple[str, ...] = ()
    """Spellings of tokens that end an answer with a call, beside those that the template writes."""
    around: tuple[str, str] = ("", "")
    """Text before and after an undecodable call, where the record has what stands between."""
    shown_after: str = ""
    """Spelling before the words of an answer that has channels; empty for forms without channels."""
    thought_spans: Callable[[str], list[tuple[int, int]]] | None = None
    """Places of the thoughts in an answer's text, frames included, for forms with channels."""
    opening: tuple[str, ...] = ()
    """Spellings that make an answer a call where it begins with one. They are ordinary text elsewhere, and read only
    where tools are offered."""


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> Schemas:
    """Parameters by name, of tools in OpenAI's form; others are left out."""
    functions = (tool.get("function") for tool in tools)
    return {
        str(each.get("name")): cast("Mapping[str, Any]", each.get("parameters") or {})
        for each in cast("Iterable[Any]", functions)
        if isinstance(each, Mapping)
    }


def add_named_call(value: Any, raw: str, turn: ParsedTurn, *, keys: Sequence[str] = ("arguments",)) -> None:
    """Add the call that a decoded JSON value is: its `name`, and its arguments under one of `keys`."""
    if not isinstance(value, dict):
        return add_invalid(None, raw, f"a call must be a JSON object, not {_kind(value)}", turn)
    call = cast("dict[str, Any]", value)
    name = call.get("name")
    if not isinstance(name, str) or not name:
        return add_invalid(None, raw, "the call has no 'name'", turn)
    key = next((key for key in keys if key in call), keys[0])
    arguments = call.get(key)
    if not isinstance(arguments, dict):
        said = _kind(arguments) if key in call else "missing"
        return add_invalid(name, raw, f"'{key}' must be a JSON object, but is {said}", turn)
    return add_call(name, cast("dict[str, Any]", arguments), raw, turn)


def add_call(name: str, arguments: dict[str, Any], raw: str, turn: ParsedTurn) -> None:
    """Add a call whose parts are known, if the record can hold its arguments."""
    if why := _unstorable(arguments):
        return add_invalid(name, raw, why, turn)
    turn.tool_calls.append({"name": without_surrogates(name), "args": _clean(arguments)})
    return None


def add_invalid(name: str | None, raw: str, error: str, turn: ParsedTurn) -> None:
    """Add a call that could not be read, with the reason that the policy is shown."""
    turn.invalid_tool_calls.append({"name": name, "args": raw, "error": error})


def unclosed(close: str) -> str:
    """The reason for a call without its end."""
    return f"the call is not closed by {close}"


def decode_json(text: str, position: int = 0) -> tuple[Any, int]:
    """The JSON value at `position`, and the position after it. Raises `ValueError` with the decoder's own words."""
    try:
        return _DECODER.raw_decode(text, position)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def as_declared(text: str, schema: Mapping[str, Any], name: str) -> Any:
    """The value of an argument that was written as bare text: JSON, unless its schema says that it is a string."""
    declared: Any = cast("Mapping[str, Any]", schema.get("properties") or {}).get(name)
    kind: Any = cast("Mapping[str, Any]", declared).get("type") if isinstance(declared, Mapping) else None
    if kind == "string":
        return text
    try:
        value, end = decode_json(text, skip_space(text, 0))
    except ValueError:
        return text
    return value if skip_space(text, end) == len(text) else text


def json_text(value: Any) -> str:
    """A value as JSON in one line."""
    return json.dumps(value, ensure_ascii=False)


def skip_space(text: str, position: int) -> int:
    """The position after white space."""
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _unstorable(arguments: dict[str, Any]) -> str | None:
    """Why the record could not hold the arguments; the policy is told, since a run must not fail for what it writes."""
    level, depth = [cast("Any", arguments)], 0
    while level:
        depth += 1
        if depth > _MAX_DEPTH:
            return f"'arguments' are nested more than {_MAX_DEPTH} levels deep"
        if any(isinstance(value, int) and not -(2**63) <= value < 2**64 for value in level):
            return "'arguments' hold a whole number of more than 64 bits: pass it as a string"
        level = [item for value in level for item in _items(value)]
    return None


def _items(value: Any) -> Iterable[Any]:
    match value:
        case dict():
            return cast("dict[str, Any]", value).values()
        case list():
            return cast("list[Any]", value)
        case _:
            return ()


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "a number"


def _clean(value: Any) -> Any:
    """`value` without the lone surrogates that JSON can spell, which can be neither stored nor shown."""
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, list):
        return [_clean(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {without_surrogates(key): _clean(item) for key, item in cast("dict[str, Any]", value).items()}
    return value


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
