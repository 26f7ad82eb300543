"""Parts of a record as people read them: the text of an answer, its thoughts, the code of a tool call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from hrm_agent.trajectory.schema import Call, Trajectory

__all__ = [
    "REASONING",
    "SaidParts",
    "answer_thoughts",
    "code_of",
    "failed_text",
    "parts_of",
    "text_of",
    "thoughts_of",
]

REASONING = "reasoning_content"
"""Key of a message's `additional_kwargs` for thoughts, and the field of a chat row and of a server's message."""
_FIELDS = (REASONING, "reasoning")
_BLOCKS = ("thinking", "reasoning", REASONING)
"""Types of content blocks that hold thoughts."""
_TEXTS = (*_BLOCKS, "summary", "text")
"""Keys of such a block, or of a part of it, for the text."""
_OPENED = re.compile(r"\s*<(reason|think)>(.*?)(?:</\1>|\Z)", re.DOTALL)
_CLOSING = ("</reason>", "</think>")


class SaidParts(NamedTuple):
    """An answer, taken apart."""

    reasoning: str | None
    """What the model thought before; None where nothing is marked as that."""
    text: str
    """The rest."""


def text_of(response: dict[str, Any]) -> str:
    """Text of a stored answer, whether its content is a string or a list of blocks."""
    content = response.get("content", "")
    if isinstance(content, str):
        return content
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    return "".join(block if isinstance(block, str) else _block_text(block) for block in blocks)


def failed_text(call: Call) -> str:
    """Error of a failed call, with the text that it had streamed before."""
    said = text_of(call.response)
    return f"Failed: {call.error}" + (f"\n{said}" if said else "")


def _block_text(block: Any) -> str:
    return str(cast("dict[str, Any]", block).get("text", "")) if isinstance(block, dict) else ""


def code_of(arguments: dict[str, Any] | str) -> str:
    """The code of a call of the Python tool, or the arguments of any other."""
    if isinstance(arguments, dict) and isinstance(arguments.get("code"), str):
        return str(arguments["code"])
    return str(arguments)


def thoughts_of(message: Mapping[str, Any]) -> str | None:
    """Thoughts that are kept apart from an answer's content (None: there are none).

    `message`: the fields of a message, of which `additional_kwargs` and `content` are read. Providers keep thoughts in
    a field, as a text or as a summary in parts, or in content blocks.
    """
    extra = _table(message.get("additional_kwargs"))
    for field in _FIELDS:
        if found := _thought(extra.get(field)):
            return found
    content = message.get("content")
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    found = (_thought(block) for block in blocks if _table(block).get("type") in _BLOCKS)
    return "\n\n".join(filter(None, found)) or None


def _thought(value: Any, levels: int = 4) -> str:
    """Text of a block of thoughts, which may be made of parts."""
    if isinstance(value, str) or levels == 0:
        return value if isinstance(value, str) else ""
    if isinstance(value, list):
        return "\n\n".join(filter(None, (_thought(part, levels - 1) for part in cast("list[Any]", value))))
    block = _table(value)
    return next((text for key in _TEXTS if (text := _thought(block.get(key), levels - 1))), "")


def _table(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def answer_thoughts(trajectory: Trajectory) -> str | None:
    """Thoughts of the model call that gave the run's answer (None: it has none, or no call gave it word for word)."""
    said = (trajectory.answer or "").strip()
    gave = next((call for call in reversed(trajectory.calls) if said and text_of(call.response).strip() == said), None)
    return thoughts_of(gave.response) if gave is not None else None


def parts_of(response: dict[str, Any]) -> SaidParts:
    """Thoughts that are kept apart, or stand in `<think>` or `<reason>` at the text's beginning, and the rest."""
    text = text_of(response)
    apart = thoughts_of(response)
    if apart:
        return SaidParts(apart, text)
    if (opened := _OPENED.match(text)) is not None:
        return SaidParts(opened[2], text[opened.end() :])
    ends = [(place, tag) for tag in _CLOSING if (place := text.find(tag)) >= 0]
    if ends and f"<{min(ends)[1][2:]}" not in text[: min(ends)[0]]:  # the template has opened it
        place, tag = min(ends)
        return SaidParts(text[:place], text[place + len(tag) :])
    return SaidParts(None, text)
