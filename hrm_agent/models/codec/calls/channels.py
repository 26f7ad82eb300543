"""Forms with channels: gpt-oss' harmony, and the form of Muse. An answer consists of several
messages, each to a recipient.

The prompt ends with the opening of the first message (`<|start|>assistant`), so an answer begins in
the middle of its header. Thoughts go to their own channel and are returned as `reasoning`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hrm_agent.models.codec.calls.form import (
    CallForm,
    Scan,
    Schemas,
    add_invalid,
    add_named_call,
    decode_json,
    json_text,
    skip_space,
)
from hrm_agent.models.codec.calls.tagged import ATEM, after_atem
from hrm_agent.models.engine import ParsedTurn

__all__ = ["HARMONY", "MUSE"]

_NEXT = "<|start|>assistant"
_BODY = "<|message|>"
_HARMONY_END = re.compile(r"<\|(?:end|call|return)\|>")
_MUSE_END = re.compile(r"<\|(?:eom|eot)\|>")
_RECIPIENT = re.compile(r"(?:^|\s)to=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


class _Message(NamedTuple):
    """Message of an answer."""

    header: str
    body: str
    span: tuple[int, int]
    """Span of the message in the answer's text, with its frame."""

    @property
    def recipient(self) -> str | None:
        found = _RECIPIENT.search(self.header)
        return found.group(1) if found is not None else None

    @property
    def channel(self) -> str | None:
        found = _CHANNEL.search(self.header)
        return found.group(1) if found is not None else None


def _read_messages(
    text: str, end: re.Pattern[str], skip: Callable[[Scan, int], int]
) -> Iterator[_Message]:
    """Messages in order. If a message has no body mark, the model knows no channels, and the whole
    message is its body.

    `skip`: function from the position at which a call's arguments begin to the position after them.
    Arguments may hold any mark, so marks are not searched in them.
    """
    scan = Scan(text)
    position = 0
    start = 0
    while True:
        following = scan.find(_NEXT, position)
        mark = scan.find(_BODY, position)
        if mark < 0 or 0 <= following < mark:
            header = ""
            begin = position
        else:
            header = text[position:mark]
            begin = mark + len(_BODY)
        after = skip(scan, begin) if _RECIPIENT.search(header) is not None else begin
        following = scan.find(_NEXT, after)
        last = following if following >= 0 else len(text)
        stop = scan.find(end, after)
        yield _Message(header, text[begin : stop if 0 <= stop < last else last], (start, last))
        if following < 0:
            return
        start = following
        position = following + len(_NEXT)


def _after_json(scan: Scan, position: int) -> int:
    try:
        return decode_json(scan.text, skip_space(scan.text, position))[1]
    except ValueError:
        return position


def _read_harmony(text: str, schemas: Schemas) -> ParsedTurn:
    del schemas
    thoughts = list[str]()
    said = list[str]()
    turn = ParsedTurn("")
    for message in _read_messages(text, _HARMONY_END, _after_json):
        if message.recipient is not None:
            _add_harmony_call(message.recipient.removeprefix("functions."), message.body, turn)
        elif _thinks_harmony(message):
            thoughts.append(message.body)
        else:
            said.append(message.body)
    return _turn(thoughts, said, turn)


def _thinks_harmony(message: _Message) -> bool:
    return message.recipient is None and message.channel == "analysis"


def _harmony_thoughts(text: str) -> list[tuple[int, int]]:
    return [
        message.span
        for message in _read_messages(text, _HARMONY_END, _after_json)
        if _thinks_harmony(message)
    ]


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
        f" to=functions.{call['name']}<|channel|>commentary json{_BODY}{json_text(call['args'])}"
        for call in calls
    )
    return "<|call|><|start|>assistant".join(written)


def _read_muse(text: str, schemas: Schemas) -> ParsedTurn:
    thoughts = list[str]()
    said = list[str]()
    turn = ParsedTurn("")
    for message in _read_messages(text, _MUSE_END, after_atem):
        body = message.body
        recipient = message.recipient or "user"
        if _thinks_muse(message):
            thoughts.append(body)
        elif recipient == "user":
            said.append(body)
        else:
            called = ATEM.read(body, schemas)
            turn.tool_calls.extend(called.tool_calls)
            turn.invalid_tool_calls.extend(called.invalid_tool_calls)
            if not (called.tool_calls or called.invalid_tool_calls):
                add_invalid(recipient, body, "the message to a tool holds no call", turn)
            elif called.content:
                said.append(called.content)
    return _turn(thoughts, said, turn)


def _thinks_muse(message: _Message) -> bool:
    return message.recipient == "self"


def _muse_thoughts(text: str) -> list[tuple[int, int]]:
    return [
        message.span
        for message in _read_messages(text, _MUSE_END, after_atem)
        if _thinks_muse(message)
    ]


def _write_muse(calls: Sequence[Mapping[str, Any]]) -> str:
    return "<|eom|><|start|>assistant".join(
        f" to={call['name']}{_BODY}{ATEM.write([call])}" for call in calls
    )


def _turn(thoughts: Sequence[str], said: Sequence[str], turn: ParsedTurn) -> ParsedTurn:
    content = "\n\n".join(said) if len(said) != 1 else said[0]
    return ParsedTurn(
        content, turn.tool_calls, turn.invalid_tool_calls, "\n\n".join(thoughts).strip("\n") or None
    )


HARMONY = CallForm(
    "harmony",
    marks=("<|end|>", "<|call|>", "<|return|>", _NEXT),
    inside=("<|start|>", "<|channel|>", _BODY, "<|end|>", "<|constrain|>"),
    read=_read_harmony,
    write=_write_harmony,
    words=f"<|channel|>commentary{_BODY}{{}}<|end|>{_NEXT}",
    header=_NEXT,
    shown_after=("<|channel|>final<|message|>", "<|channel|>commentary<|message|>"),
    thought_spans=_harmony_thoughts,
)
MUSE = CallForm(
    "muse",
    marks=("<|eom|>", "<|eot|>", _NEXT),
    inside=("<|start|>", _BODY, "<|eom|>"),
    read=_read_muse,
    write=_write_muse,
    words=f" to=user{_BODY}{{}}<|eom|>{_NEXT}",
    header=_NEXT,
    shown_after=(" to=user<|message|>",),
    thought_spans=_muse_thoughts,
)
