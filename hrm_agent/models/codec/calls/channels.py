"""Forms of channels: an answer is several messages, each to a recipient. gpt-oss' harmony, and Muse's.

The prompt ends with the opening of the first message (`<|start|>assistant`), so that an answer begins in the middle of
its header. Thoughts go to a channel of their own and come back as `reasoning`.
"""

from __future__ import annotations

import re
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
)
from hrm_agent.models.codec.calls.tagged import ATEM, read_atem
from hrm_agent.models.engine import ParsedTurn

__all__ = ["HARMONY", "MUSE"]

_NEXT = re.compile(r"<\|start\|>assistant")
_BODY = "<|message|>"
_HARMONY_END = re.compile(r"<\|(?:end|call|return)\|>")
_MUSE_END = re.compile(r"<\|(?:eom|eot)\|>")
_RECIPIENT = re.compile(r"(?:^|\s)to=(\S+?)(?=\s|<|$)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


def _messages(text: str, end: re.Pattern[str]) -> list[tuple[str, str]]:
    """Header and body of each message. A message without a body's mark is all body: who wrote it knows no channels."""
    found: list[tuple[str, str]] = []
    for piece in _NEXT.split(text):
        header, mark, body = piece.partition(_BODY)
        if not mark:
            header, body = "", piece
        found.append((header, end.split(body, maxsplit=1)[0]))
    return found


def _read_harmony(text: str, schemas: Schemas) -> ParsedTurn:
    del schemas
    thoughts, said, turn = list[str](), list[str](), ParsedTurn("")
    for header, body in _messages(text, _HARMONY_END):
        recipient = _RECIPIENT.search(header)
        channel = _CHANNEL.search(header)
        if recipient is not None:
            _add_harmony_call(recipient.group(1).removeprefix("functions."), body, turn)
        elif channel is not None and channel.group(1) == "analysis":
            thoughts.append(body)
        else:
            said.append(body)
    return _turn(thoughts, said, turn)


def _add_harmony_call(name: str, body: str, turn: ParsedTurn) -> None:
    try:
        value, end = decode_json(body, skip_space(body, 0))
    except ValueError as error:
        return add_invalid(name, body, str(error), turn)
    if skip_space(body, end) < len(body):
        return add_invalid(name, body, "text stands after the arguments", turn)
    return add_named_call({"name": name, "arguments": value}, body, turn)


def _write_harmony(calls: Sequence[Mapping[str, Any]]) -> str:
    written = (
        f" to=functions.{call['name']}<|channel|>commentary json{_BODY}{json_text(call['args'])}" for call in calls
    )
    return "<|call|><|start|>assistant".join(written)


def _read_muse(text: str, schemas: Schemas) -> ParsedTurn:
    thoughts, said, turn = list[str](), list[str](), ParsedTurn("")
    for header, body in _messages(text, _MUSE_END):
        recipient = _RECIPIENT.search(header)
        who = recipient.group(1) if recipient else "user"
        if who == "self":
            thoughts.append(body)
        elif who == "user":
            said.append(body)
        else:
            called = read_atem(body, schemas)
            turn.tool_calls.extend(called.tool_calls)
            turn.invalid_tool_calls.extend(called.invalid_tool_calls)
            if not (called.tool_calls or called.invalid_tool_calls):
                add_invalid(who, body, "the message to a tool holds no call", turn)
    return _turn(thoughts, said, turn)


def _write_muse(calls: Sequence[Mapping[str, Any]]) -> str:
    return "<|eom|><|start|>assistant".join(f" to={call['name']}{_BODY}{ATEM.write([call])}" for call in calls)


def _turn(thoughts: Sequence[str], said: Sequence[str], turn: ParsedTurn) -> ParsedTurn:
    content = "\n\n".join(said) if len(said) != 1 else said[0]
    return ParsedTurn(content, turn.tool_calls, turn.invalid_tool_calls, "\n\n".join(thoughts).strip("\n") or None)


HARMONY = CallForm(
    "harmony",
    marks=(" to=", "<|start|>assistant to=", "commentary to="),
    inside=("<|start|>", "<|channel|>", _BODY, "<|end|>", "<|constrain|>"),
    read=_read_harmony,
    write=_write_harmony,
    shown_after="<|channel|>final<|message|>",
)
MUSE = CallForm(
    "muse",
    marks=("<|eom|>",),
    inside=("<|start|>", _BODY, "<|eom|>"),
    read=_read_muse,
    write=_write_muse,
    shown_after=" to=user<|message|>",
)
