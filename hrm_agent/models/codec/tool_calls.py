"""Take a policy's answer apart: Hermes-style `<tool_call>{json}</tool_call>` blocks and the text around them.

A call is read by a JSON decoder, not by a search for the closing tag, because code in an argument may contain
anything, a literal `</tool_call>` included. What cannot be decoded is no exception but data: the policy is shown the
decoder's own words, and the record keeps the raw text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NoReturn, cast

from hrm_agent.models.engine import ParsedTurn
from hrm_agent.unicode import without_surrogates

__all__ = ["TOOL_CALL_CLOSE", "TOOL_CALL_OPEN", "parse_turn", "tool_call_text"]

TOOL_CALL_OPEN = "<tool_call>"
TOOL_CALL_CLOSE = "</tool_call>"
_MAX_DEPTH = 64
"""Levels of arguments; msgpack holds some more, but a message stands in other things."""


def parse_turn(text: str) -> ParsedTurn:
    """Content, calls and undecodable calls of one answer."""
    start = text.find(TOOL_CALL_OPEN)
    if start < 0:
        return ParsedTurn(text)
    turn = ParsedTurn("")
    kept: list[str] = []
    position = 0
    while start >= 0:
        kept.append(text[position:start])
        position = _read_block(text, start + len(TOOL_CALL_OPEN), turn)
        start = text.find(TOOL_CALL_OPEN, position)
    kept.append(text[position:])
    return ParsedTurn("".join(kept).strip(), turn.tool_calls, turn.invalid_tool_calls)


def tool_call_text(name: str, arguments: dict[str, Any]) -> str:
    """The block that `parse_turn` reads back as this call."""
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"{TOOL_CALL_OPEN}{call}{TOOL_CALL_CLOSE}"


def _read_block(text: str, start: int, turn: ParsedTurn) -> int:
    """Add the call that starts at `start` to `turn`; the position after its block."""
    begin = _skip_space(text, start)
    try:
        value, end = _DECODER.raw_decode(text, begin)
    except (ValueError, RecursionError):
        return _read_undecodable(text, start, turn)
    end = _skip_space(text, end)
    if not text.startswith(TOOL_CALL_CLOSE, end):
        return _read_undecodable(text, start, turn)
    raw = text[begin:end]
    _add_call(value, raw.strip(), turn)
    return end + len(TOOL_CALL_CLOSE)


def _read_undecodable(text: str, start: int, turn: ParsedTurn) -> int:
    end = text.find(TOOL_CALL_CLOSE, start)
    following = text.find(TOOL_CALL_OPEN, start)
    if end < 0 or 0 <= following < end:
        end = following if following >= 0 else len(text)
        _add_invalid(None, text[start:end].strip(), f"the call is not closed by {TOOL_CALL_CLOSE}", turn)
        return end
    raw = text[start:end].strip()
    _add_invalid(None, raw, _decode_error(raw), turn)
    return end + len(TOOL_CALL_CLOSE)


def _decode_error(raw: str) -> str:
    try:
        json.loads(raw, parse_constant=_refuse_constant)
    except ValueError as error:
        return str(error)
    except RecursionError:
        return "the JSON is nested too deeply"
    return "the call cannot be decoded"


def _add_call(value: Any, raw: str, turn: ParsedTurn) -> None:
    if not isinstance(value, dict):
        return _add_invalid(None, raw, f"a call must be a JSON object, not {_kind(value)}", turn)
    call = cast("dict[str, Any]", value)
    name, arguments = call.get("name"), call.get("arguments")
    if not isinstance(name, str) or not name:
        return _add_invalid(None, raw, "the call has no 'name'", turn)
    if not isinstance(arguments, dict):
        said = _kind(arguments) if "arguments" in call else "missing"
        return _add_invalid(name, raw, f"'arguments' must be a JSON object, but is {said}", turn)
    if why := _unstorable(cast("dict[str, Any]", arguments)):
        return _add_invalid(name, raw, why, turn)
    turn.tool_calls.append({"name": without_surrogates(name), "args": _clean(arguments)})
    return None


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


def _add_invalid(name: str | None, raw: str, error: str, turn: ParsedTurn) -> None:
    turn.invalid_tool_calls.append({"name": name, "args": raw, "error": error})


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


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
