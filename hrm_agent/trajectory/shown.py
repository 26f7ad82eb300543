"""Parts of a record as people read them: the text of an answer, the code of a tool call."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from hrm_agent.trajectory.schema import Call

__all__ = ["SaidParts", "code_of", "failed_text", "parts_of", "text_of"]

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


def parts_of(response: dict[str, Any]) -> SaidParts:
    """Reasoning that stands in a field or a block of its own, or in `<think>` or `<reason>` at the text's beginning."""
    text, apart = text_of(response), _reasoning_apart(response)
    if apart:
        return SaidParts(apart, text)
    if (opened := _OPENED.match(text)) is not None:
        return SaidParts(opened[2], text[opened.end() :])
    ends = [(place, tag) for tag in _CLOSING if (place := text.find(tag)) >= 0]
    if ends and f"<{min(ends)[1][2:]}" not in text[: min(ends)[0]]:  # the template has opened it
        place, tag = min(ends)
        return SaidParts(text[:place], text[place + len(tag) :])
    return SaidParts(None, text)


def _reasoning_apart(response: dict[str, Any]) -> str:
    extra, content = response.get("additional_kwargs"), response.get("content")
    if isinstance(extra, dict):
        given = cast("dict[str, Any]", extra)
        stated = given.get("reasoning_content") or given.get("reasoning")
        if isinstance(stated, str):
            return stated
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    found = [cast("dict[str, Any]", block) for block in blocks if isinstance(block, dict)]
    return "".join(str(b.get("reasoning") or b.get("thinking") or "") for b in found)
