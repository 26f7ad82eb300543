"""Comparison of two moments: their last common moment, the cost of each since then, and the
differences of the states.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from pydantic import BaseModel

from hrm_agent.runtime.execution.loading import Graph
from hrm_agent.runtime.time_travel.history import History, Moment
from hrm_agent.runtime.time_travel.read_history import history
from hrm_agent.store import RunStore
from hrm_agent.trajectory import Call, CallUsage, ToolCall, Trajectory
from hrm_agent.trajectory.call_facts import total_usage
from hrm_agent.trajectory.words import thoughts_of

__all__ = ["Change", "DiffSide", "ThreadDiff", "channel_changes", "thread_diff"]


@dataclass(frozen=True, slots=True)
class Change:
    """Part of the state that differs."""

    channel: str
    """Name of the state's channel."""
    part: str
    """Part of the channel: `[3] ai` for a message, empty for a whole channel."""
    lines: tuple[str, ...]
    """Unified diff, without its header: of the text of a message, of the JSON of any other
    value.
    """


@dataclass(frozen=True, slots=True)
class DiffSide:
    """One of the two moments, and the moments on its side only."""

    thread_id: str
    """Thread of the compared moment."""
    moment: Moment
    """Compared moment."""
    trajectory: Trajectory | None
    """Recorded run (None for a thread that was made without an `EpisodeRunner`)."""
    steps: tuple[Moment, ...]
    """Moments since the last common one, with the compared one at the end."""
    calls: tuple[Call, ...]
    """Model calls since the last common moment, each once."""
    tool_calls: tuple[ToolCall, ...]
    """Tool calls since the last common moment, each once."""

    @property
    def used(self) -> CallUsage:
        """Tokens and cost of its calls together, as far as they are known."""
        return total_usage(call.used for call in self.calls)


@dataclass(frozen=True, slots=True)
class ThreadDiff:
    """Result of `thread_diff`."""

    common: Moment | None
    """Last moment of both, as the first side numbers it (None if the threads share nothing)."""
    a: DiffSide
    """Moment that was named first."""
    b: DiffSide
    """Moment that was named second."""
    changes: tuple[Change, ...]
    """Parts of the state that differ, from `a` to `b`."""


def thread_diff(store: RunStore, a: str, b: str, *, graph: Graph | None = None) -> ThreadDiff:
    """Compare two moments, each `THREAD@MOMENT`, or `THREAD` for its newest. `graph`: as for
    `history`.
    """
    (found_a, moment_a), (found_b, moment_b) = _named(store, a, graph), _named(store, b, graph)
    line_a = found_a.lineage(moment_a)
    line_b = found_b.lineage(moment_b)
    shared = {moment.checkpoint_id for moment in line_b}
    common = next((moment for moment in reversed(line_a) if moment.checkpoint_id in shared), None)
    sides = [
        _side(found, moment, line, common.checkpoint_id if common else None)
        for found, moment, line in ((found_a, moment_a, line_a), (found_b, moment_b, line_b))
    ]
    return ThreadDiff(
        common, sides[0], sides[1], tuple(channel_changes(moment_a.values, moment_b.values))
    )


def _named(store: RunStore, name: str, graph: Graph | None) -> tuple[History, Moment]:
    """Find a moment by its name. A thread's id may itself hold an `@`."""
    thread, at, selector = name.rpartition("@")
    whole: Any = {"configurable": {"thread_id": name}}
    if not at or store.journal.find_trajectory(name) or store.checkpointer.get_tuple(whole):
        thread = name
        selector = "last"
    found = history(store, thread, graph=graph, branches=False)
    return found, found.select(selector)


def _side(found: History, moment: Moment, line: Sequence[Moment], common: str | None) -> DiffSide:
    ids = [earlier.checkpoint_id for earlier in line]
    since = tuple(line[ids.index(common) + 1 :] if common else line)
    steps = [step.ran for step in since] + ([moment.under_way] if moment.under_way else [])
    return DiffSide(
        found.thread_id,
        moment,
        found.trajectory,
        since,
        tuple({call.id: call for step in steps for call in step.calls}.values()),
        tuple({call.id: call for step in steps for call in step.tool_calls}.values()),
    )


def channel_changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Change]:
    """Differences between the channels of two states."""
    for channel in dict.fromkeys((*a, *b)):
        old = a.get(channel)
        new = b.get(channel)
        if _has_messages(old) or _has_messages(new):
            yield from _message_changes(channel, old or [], new or [])
        elif lines := _diff(_json_lines(a, channel), _json_lines(b, channel)):
            yield Change(channel, "", lines)


def _message_changes(channel: str, old: list[Any], new: list[Any]) -> Iterator[Change]:
    """Compare messages of the same id; if ids differ, those at the same place."""
    matcher = difflib.SequenceMatcher(
        None, [_key(m) for m in old], [_key(m) for m in new], autojunk=False
    )
    for _, i1, i2, j1, j2 in matcher.get_opcodes():
        for i, j in zip_longest(range(i1, i2), range(j1, j2)):
            before = old[i] if i is not None else None
            after = new[j] if j is not None else None
            if lines := _diff(_text_lines(before), _text_lines(after)):
                kind = getattr(after if after is not None else before, "type", "")
                yield Change(channel, f"[{j if j is not None else i}] {kind}".rstrip(), lines)


def _key(message: Any) -> str:
    return str(getattr(message, "id", None) or message)


def _text_lines(message: Any) -> list[str]:
    """Lines of a message for people: its thoughts, its text, then the calls that it requests."""
    if not isinstance(message, BaseMessage):
        return [] if message is None else str(message).splitlines()
    head = [f"result of {message.tool_call_id}:"] if isinstance(message, ToolMessage) else []
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    thoughts = (thoughts_of(vars(message)) or "") if isinstance(message, AIMessage) else ""
    head += [f"| {line}" for line in thoughts.splitlines()]
    asked = [
        f"> {call['name']}({json.dumps(call['args'], ensure_ascii=False, default=str)})"
        for call in calls
    ]
    # an empty message is not the same as none
    return [*head, *message.text.splitlines(), *asked] or [""]


def _json_lines(values: Mapping[str, Any], channel: str) -> list[str]:
    if channel not in values:
        return []
    text = json.dumps(_plain(values[channel]), indent=2, ensure_ascii=False, sort_keys=True)
    return text.splitlines()


def _plain(value: Any) -> Any:
    """Convert `value` to JSON, so that equal values look equal: the order of a set, or of keys,
    does not count.
    """
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, BaseModel):
        return _plain(value.model_dump())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item) for item in cast("set[Any]", value)), key=str)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in cast("list[Any]", value)]
    return str(value)


def _diff(old: list[str], new: list[str]) -> tuple[str, ...]:
    # The first two lines are the header. They are cut by number, since a line of the text may look
    # like a header.
    lines = tuple(difflib.unified_diff(old, new, lineterm="", n=1))[2:]
    return tuple(line for line in lines if not line.startswith("@@"))


def _has_messages(value: Any) -> bool:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return bool(items) and all(isinstance(item, BaseMessage) for item in items)
