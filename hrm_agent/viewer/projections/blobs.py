"""Rest of a cut text, in pieces."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from hrm_agent.errors import StoreError
from hrm_agent.store.browse.lists import overlays_of
from hrm_agent.store.browse.messages import new_messages
from hrm_agent.store.browse.state import shown_channels
from hrm_agent.store.values.damage import DAMAGED
from hrm_agent.store.values.plain_reader import ShownMessage, Unread
from hrm_agent.trajectory import Trajectory
from hrm_agent.trajectory.words import failed_text, parts_of, text_of, thoughts_of
from hrm_agent.viewer.json_text import PIECE, NotThere, json_lines
from hrm_agent.viewer.projections.groups import Damaged
from hrm_agent.viewer.projections.trajectory.items import arguments_text, asked_calls, program_of
from hrm_agent.viewer.projections.trajectory.moments import plain
from hrm_agent.viewer.projections.trajectory.threads import header_of

if TYPE_CHECKING:
    from hrm_agent.viewer.places import Place

__all__ = ["blob", "whole_text"]

_ALL = 10**9
_REASONING = "/reasoning"
"""Suffix of the field of a message's thoughts."""


def blob(place: Place, item: str, field: str, from_: int = 0) -> dict[str, Any]:
    """`GET blob`: up to 65,536 characters, from `from` on, of a text that another answer names."""
    text = whole_text(place, item, field)
    piece = text[from_ : from_ + PIECE]
    following = from_ + len(piece)
    return {
        "text": piece,
        "from": from_,
        "chars": len(text),
        "next": following if following < len(text) and piece else None,
    }


def whole_text(place: Place, item: str, field: str) -> str:
    """Whole text. Raises `NotThere` if it is missing."""
    kind, _, rest = item.partition(":")
    read = _READERS.get(kind)
    try:
        text = read(place, rest, field) if read is not None else None
    except StoreError:
        raise
    except DAMAGED:
        text = None
    if text is None:
        raise NotThere(
            f"There is no text {field[:80]!r} of {item[:200]!r}.",
            "The page may be older than the store.",
        )
    return text


def _of_trajectory(place: Place, id_: str, field: str) -> str | None:
    header: Trajectory = header_of(place, id_)
    match field:
        case "prompt":
            return header.task.prompt
        case "reference":
            return header.task.answer
        case "answer":
            return header.answer
        case "error":
            return header.error
        case _:
            return None


def _of_overlay(place: Place, rest: str, field: str) -> str | None:
    trajectory, _, run = rest.partition(":")
    found = overlays_of(place.store(), run, Damaged(), ids=[trajectory]).get(trajectory)
    return found.reason if found is not None and field == "reason" else None


def _of_scoring(place: Place, rest: str, field: str) -> str | None:
    trajectory, _, rubric = rest.partition(":")
    found = next(
        (each for each in place.store().scorings.of(trajectory) if each.rubric == rubric), None
    )
    name, _, number = field.partition("/")
    if found is None:
        return None
    if name == "fault":
        return found.fault
    return found.scores[int(number)].reason if name == "reason" else None


def _of_turn(place: Place, rest: str, field: str) -> str | None:
    trajectory, _, id_ = rest.partition(":")
    turn = next((each for each in header_of(place, trajectory).turns if each.id == id_), None)
    if turn is None:
        return None
    return (
        turn.prompt
        if field == "prompt"
        else turn.before.error
        if field == "error"
        else turn.before.answer
    )


def _of_call(place: Place, id_: str, field: str) -> str | None:
    call = next(iter(place.store().journal.calls_among([id_])), None)
    if call is None:
        return None
    name, _, number = field.partition("/")
    match name:
        case "reasoning":
            return parts_of(call.response).reasoning
        case "text":
            return parts_of(call.response).text if call.error is None else failed_text(call)
        case "arguments":
            return arguments_text(asked_calls(call.response)[int(number)].get("args"))
        case "prompt":
            sent = new_messages(place.store(), {id_: None}, _ALL).get(id_)
            messages = sent.messages if sent is not None else call.request or ()
            number, _, part = number.partition("/")
            message = next(itertools.islice(messages, int(number), None))
            if part:
                return thoughts_of(message)
            return str(message["unread"]) if message.get("unread") else text_of(dict(message))
        case _:
            return None


def _of_tool(place: Place, id_: str, field: str) -> str | None:
    call = next(iter(place.store().journal.tool_calls_among([id_])), None)
    if call is None:
        return None
    if field == "arguments":
        return arguments_text(call.arguments)
    if field == "code":
        return program_of(call.arguments)
    return getattr(call, field) if field in ("content", "stdout", "stderr", "value") else None


def _of_state(place: Place, rest: str, field: str) -> str | None:
    checkpoint, _, thread = rest.partition(":")
    id_, _, namespace = checkpoint.partition("|")
    found = shown_channels(place.store(), thread, id_, namespace)
    values: dict[str, Any] = found.checkpoint["channel_values"] if found is not None else {}
    if field in values:
        value = values[field]
        return (
            value
            if isinstance(value, str)
            else json_lines(plain(value.made_of if isinstance(value, Unread) else value))
        )
    return _of_message(values, field)


def _of_message(values: dict[str, Any], field: str) -> str | None:
    """Text of a message by `CHANNEL/NUMBER`, `CHANNEL/NUMBER/reasoning` or
    `CHANNEL/NUMBER/arguments/NUMBER`.
    """
    before, asked, number = field.rpartition("/arguments/")
    spoken = (before if asked else field).removesuffix(_REASONING)
    channel, _, place = spoken.rpartition("/")
    held = values.get(channel)
    messages = cast("list[Any]", held) if isinstance(held, list) else [held]
    message = messages[int(place)]
    if not isinstance(message, ShownMessage):
        return None
    if not asked:
        return (
            thoughts_of(message.fields) if field.endswith(_REASONING) else text_of(message.fields)
        )
    calls = [call for call in message.fields["tool_calls"] if isinstance(call, dict)]
    return arguments_text(plain(cast("dict[str, Any]", calls[int(number)]).get("args")))


def _of_source(place: Place, rest: str, field: str) -> str | None:
    from hrm_agent.viewer.projections.trajectory.citations import sources_of

    trajectory, _, name = rest.partition(":")
    return (
        str(sources_of(place, trajectory).get(name, {}).get("text", ""))
        if field == "text"
        else None
    )


_READERS: dict[str, Callable[[Place, str, str], str | None]] = {
    "trajectory": _of_trajectory,
    "overlay": _of_overlay,
    "scoring": _of_scoring,
    "turn": _of_turn,
    "call": _of_call,
    "tool": _of_tool,
    "state": _of_state,
    "source": _of_source,
}
