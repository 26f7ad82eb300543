"""Form of Hermes, which Qwen 2.5 and 3 write. Models without a form of their own are prompted to
use Hermes'.

`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. A call is read by a JSON decoder, not by
a search for the closing tag, because code in an argument may contain anything, even a literal
`</tool_call>`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hrm_agent.models.codec.calls.form import (
    CallForm,
    Scan,
    Schemas,
    Unreadable,
    add_named_call,
    decode_json,
    json_text,
    read_blocks,
    skip_space,
)
from hrm_agent.models.engine import ParsedTurn

__all__ = ["HERMES", "TOOL_CALL_CLOSE", "TOOL_CALL_OPEN", "parse_turn", "tool_call_text"]

TOOL_CALL_OPEN = "<tool_call>"
TOOL_CALL_CLOSE = "</tool_call>"


def parse_turn(text: str, schemas: Schemas | None = None) -> ParsedTurn:
    """Content, calls and undecodable calls of one answer."""
    del schemas  # not needed, since JSON has types
    return read_blocks(text, (TOOL_CALL_OPEN, TOOL_CALL_CLOSE), _read_call, explain=_decode_error)


def tool_call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """Block that `parse_turn` reads back as this call."""
    call = json_text({"name": name, "arguments": arguments})
    return f"{TOOL_CALL_OPEN}{call}{TOOL_CALL_CLOSE}"


def _write(calls: Sequence[Mapping[str, Any]]) -> str:
    return "".join(tool_call_text(call["name"], call["args"]) for call in calls)


def _read_call(scan: Scan, position: int, turn: ParsedTurn) -> int:
    text = scan.text
    begin = skip_space(text, position)
    try:
        value, end = decode_json(text, begin)
    except ValueError:
        raise Unreadable("the call cannot be decoded", reached=begin) from None
    end = skip_space(text, end)
    if not text.startswith(TOOL_CALL_CLOSE, end):
        raise Unreadable("the call cannot be decoded", reached=end)
    add_named_call(value, text[begin:end].strip(), turn)
    return end + len(TOOL_CALL_CLOSE)


def _decode_error(raw: str) -> str:
    try:
        _, end = decode_json(raw)
    except ValueError as error:
        return str(error)
    end = skip_space(raw, end)
    return (
        str(json.JSONDecodeError("Extra data", raw, end))
        if end < len(raw)
        else "the call cannot be decoded"
    )


HERMES = CallForm(
    "hermes",
    marks=(TOOL_CALL_OPEN,),
    inside=(TOOL_CALL_OPEN, TOOL_CALL_CLOSE),
    read=parse_turn,
    write=_write,
    around=(TOOL_CALL_OPEN, TOOL_CALL_CLOSE),
)
