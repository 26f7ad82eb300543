"""Hermes' form, which Qwen 2.5 and 3 write, and which models are asked for that have no form of their own.

`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. A call is read by a JSON decoder, not by a search for the
closing tag, because code in an argument may contain anything, a literal `</tool_call>` included.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hrm_agent.models.codec.calls.form import (
    CallForm,
    Schemas,
    add_invalid,
    add_named_call,
    decode_json,
    json_text,
    skip_space,
    unclosed,
)
from hrm_agent.models.engine import ParsedTurn

__all__ = ["HERMES", "TOOL_CALL_CLOSE", "TOOL_CALL_OPEN", "parse_turn", "tool_call_text"]

TOOL_CALL_OPEN = "<tool_call>"
TOOL_CALL_CLOSE = "</tool_call>"


def parse_turn(text: str, schemas: Schemas | None = None) -> ParsedTurn:
    """Content, calls and undecodable calls of one answer."""
    del schemas  # arguments are JSON, which says their types itself
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


def tool_call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """The block that `parse_turn` reads back as this call."""
    call = json_text({"name": name, "arguments": arguments})
    return f"{TOOL_CALL_OPEN}{call}{TOOL_CALL_CLOSE}"


def _write(calls: Sequence[Mapping[str, Any]]) -> str:
    return "".join(tool_call_text(call["name"], call["args"]) for call in calls)


def _read_block(text: str, start: int, turn: ParsedTurn) -> int:
    """Add the call that starts at `start` to `turn`; the position after its block."""
    begin = skip_space(text, start)
    try:
        value, end = decode_json(text, begin)
    except ValueError:
        return _read_undecodable(text, start, turn)
    end = skip_space(text, end)
    if not text.startswith(TOOL_CALL_CLOSE, end):
        return _read_undecodable(text, start, turn)
    add_named_call(value, text[begin:end].strip(), turn)
    return end + len(TOOL_CALL_CLOSE)


def _read_undecodable(text: str, start: int, turn: ParsedTurn) -> int:
    end = text.find(TOOL_CALL_CLOSE, start)
    following = text.find(TOOL_CALL_OPEN, start)
    if end < 0 or 0 <= following < end:
        end = following if following >= 0 else len(text)
        add_invalid(None, text[start:end].strip(), unclosed(TOOL_CALL_CLOSE), turn)
        return end
    raw = text[start:end].strip()
    add_invalid(None, raw, _decode_error(raw), turn)
    return end + len(TOOL_CALL_CLOSE)


def _decode_error(raw: str) -> str:
    try:
        decode_json(raw)
        json.loads(raw)
    except ValueError as error:
        return str(error)
    return "the call cannot be decoded"


HERMES = CallForm(
    "hermes",
    marks=(TOOL_CALL_OPEN,),
    inside=(TOOL_CALL_OPEN, TOOL_CALL_CLOSE),
    read=parse_turn,
    write=_write,
    around=(TOOL_CALL_OPEN, TOOL_CALL_CLOSE),
)
