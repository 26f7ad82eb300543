"""Comparison of two checkpoints as bytes, with the writes of their tasks, and their differences in
words.

Generated ids may differ (`hrm_agent.runtime.replay.renaming`), and so may ignored paths
(`hrm_agent.runtime.replay.ignored_paths`). All else must be equal.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.messages import BaseMessage, message_chunk_to_message
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.types import Send

from hrm_agent.langgraph_format import (
    ERROR,
    ERROR_SOURCE,
    INTERRUPT,
    NULL_TASK,
    RESUME,
    RETURN,
    SENDS,
    is_internal,
    is_reserved,
    triggered_nodes,
)
from hrm_agent.models.call_recording import plain
from hrm_agent.runtime.replay.ignored_paths import Ignored
from hrm_agent.runtime.state import Unbuilt
from hrm_agent.runtime.time_travel.thread_diff import Change
from hrm_agent.store.values.serializer import StrictSerializer

__all__ = [
    "Change",
    "Equal",
    "TaskWrites",
    "next_changes",
    "same_next_tasks",
    "state_changes",
    "task_writes",
    "write_changes",
]

Equal = Callable[[bytes, bytes], bool]
"""Predicate that is True if serialised values, the recorded and the replayed one, count as equal:
`Renaming.equal`.
"""
_NOTES = (INTERRUPT, RESUME, ERROR, ERROR_SOURCE)
"""Channels of writes that do not change the state."""
_IN_WORDS = {INTERRUPT: "question", ERROR: "error"}
"""Channel -> name of a write to it in reports."""
_TIMES = ("began", "ended", "seconds", "thread", "spans")
"""Keys of `hrm_agent.graphs.parts.budget.Usage`, in this or an earlier version, that hold times."""


def state_changes(
    serializer: SerializerProtocol,
    recorded: CheckpointTuple,
    now: CheckpointTuple,
    equal: Equal,
    ignored: Ignored | None = None,
) -> tuple[Change, ...]:
    """Channels of the graph's state that differ, apart from ids and `ignored` paths."""
    old = _state(recorded)
    new = _state(now)
    shown_old = old
    shown_new = new
    if ignored is not None:
        old, new = ignored.blanked(old, new)
    return tuple(
        Change(name, "", _diff(shown_old.get(name), shown_new.get(name)))
        for name in sorted(old.keys() | new.keys())
        if name not in old
        or name not in new
        or not _equal(serializer, *_without_old_times(old[name], new[name]), equal)
    )


def same_next_tasks(
    serializer: SerializerProtocol,
    recorded: CheckpointTuple,
    now: CheckpointTuple,
    equal: Equal,
    ignored: Ignored | None = None,
    managed: Collection[str] = (),
) -> bool:
    """True if the same nodes come next, with the same arguments.

    `managed`: names of values that LangGraph computes beside the state, such as the remaining
    steps. They depend on where a run was resumed.
    """
    old, new = (_next(found, ignored, managed) for found in (recorded, now))
    return old.keys() == new.keys() and all(
        _equal(serializer, old[name], new[name], equal) for name in old
    )


def next_changes(recorded: CheckpointTuple, now: CheckpointTuple) -> Change:
    """Difference between the recorded and the replayed next tasks."""
    return Change("next tasks", "", _diff(*(_told_next(found) for found in (recorded, now))))


@dataclass(frozen=True, slots=True)
class TaskWrites:
    """Writes of one task to the checkpoint that it started from."""

    channels: tuple[tuple[str, Any], ...]
    """Channel and value of the task's writes in order, then an error that another node handles, and
    questions to a person. LangGraph's other notes are left out.
    """
    failed: bool
    """True if an attempt ended in an error."""

    @property
    def ended(self) -> bool:
        """True if an attempt ended well."""
        return any(channel != INTERRUPT for channel, _ in self.channels)

    @property
    def asked(self) -> bool:
        """True if the task was interrupted by a question to a person."""
        return any(channel == INTERRUPT for channel, _ in self.channels)

    @property
    def is_functional(self) -> bool:
        """True for a task of the functional API, which returns a value."""
        return any(channel == RETURN for channel, _ in self.channels)


def task_writes(found: CheckpointTuple) -> dict[str, TaskWrites]:
    """Writes by task id. The input of a run and answers to questions belong to no task."""
    by_task: dict[str, list[tuple[str, Any]]] = {}
    for task, channel, value in found.pending_writes or ():
        if task != NULL_TASK and channel != RESUME:
            by_task.setdefault(task, []).append((channel, value))
    return {task: _writes_of(writes) for task, writes in by_task.items()}


def _writes_of(writes: Sequence[tuple[str, Any]]) -> TaskWrites:
    notes = dict(writes)
    channels = [(channel, value) for channel, value in writes if channel not in _NOTES]
    if ERROR_SOURCE in notes:  # another node handles the error
        channels.append((ERROR, str(notes.get(ERROR))))
    if INTERRUPT in notes:  # a replay's questions have new ids
        channels.append((INTERRUPT, [asked.value for asked in notes[INTERRUPT]]))
    return TaskWrites(tuple(channels), ERROR in notes)


def write_changes(
    serializer: SerializerProtocol,
    recorded: TaskWrites,
    now: TaskWrites,
    equal: Equal,
    ignored: Ignored,
) -> tuple[Change, ...]:
    """Writes of a task that differ.

    Channels that an ignored path leads into are left out. So are channels that trigger nodes: these
    are compared in the next checkpoint (`same_next_tasks`).
    """
    old, new = (_to_compare(writes, ignored) for writes in (recorded, now))
    # On one side the question was answered before it was asked, as in a fork.
    if recorded.ended and now.ended and recorded.asked is not now.asked:
        old, new = ([write for write in writes if write[0] != INTERRUPT] for writes in (old, new))
    if [channel for channel, _ in old] == [channel for channel, _ in new]:
        pairs = [
            (channel, then, value) for (channel, then), (_, value) in zip(old, new, strict=True)
        ]
        differ = [pair for pair in pairs if not _same_write(serializer, *pair[1:], equal)]
        return tuple(
            Change(_shown_channel(channel), "", _diff(then, value))
            for channel, then, value in differ
        )
    shown = (
        [[_shown_channel(channel), plain(value)] for channel, value in writes]
        for writes in (old, new)
    )
    return (Change("writes", "", _diff(*shown)),)


def _same_write(serializer: SerializerProtocol, old: Any, new: Any, equal: Equal) -> bool:
    """True if two writes change the state alike."""
    old, new = _without_old_times(old, new)
    return _equal(serializer, old, new, equal) or _equal(serializer, *_as_taken(old, new), equal)


def _as_taken(old: Any, new: Any) -> tuple[Any, Any]:
    """Two values with their messages as `add_messages` stores them.

    `add_messages` converts chunks to whole messages, and sets missing ids in place. Whether a write
    is stored before or after that is chance, so an id on one side only does not count.
    """
    if isinstance(old, BaseMessage) and isinstance(new, BaseMessage):
        whole = [message_chunk_to_message(message) for message in (old, new)]
        if (old.id is None) is not (new.id is None):
            whole = [message.model_copy(update={"id": None}) for message in whole]
        return whole[0], whole[1]
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        items = cast("Sequence[Any]", old)
        others = cast("Sequence[Any]", new)
        if len(items) == len(others):
            pairs = [_as_taken(one, other) for one, other in zip(items, others, strict=True)]
            return [one for one, _ in pairs], [other for _, other in pairs]
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        held = cast("Mapping[Any, Any]", old)
        there = cast("Mapping[Any, Any]", new)
        both = {name: _as_taken(held[name], there[name]) for name in held if name in there}
        then = {name: both[name][0] if name in both else value for name, value in held.items()}
        return then, {
            name: both[name][1] if name in both else value for name, value in there.items()
        }
    return old, new


def _to_compare(writes: TaskWrites, ignored: Ignored) -> list[tuple[str, Any]]:
    return [
        (channel, value)
        for channel, value in writes.channels
        if not ignored.leads_into(channel) and not (channel == SENDS or _leads_on(channel))
    ]


def _leads_on(channel: str) -> bool:
    """True if a channel triggers nodes."""
    return is_internal(channel) and not is_reserved(channel)


def _as_compared(sent: Any, ignored: Ignored | None, managed: Collection[str]) -> Any:
    """`Send`s as node and argument, without ignored paths and managed values."""
    if isinstance(sent, Send):
        state = sent.arg if ignored is None else ignored.blanked(sent.arg, None, note=False)[0]
        return [sent.node, _without_managed(state, managed)]
    items = cast("Sequence[Any]", sent) if isinstance(sent, (list, tuple)) else None
    return sent if items is None else [_as_compared(item, ignored, managed) for item in items]


def _without_managed(state: Any, managed: Collection[str]) -> Any:
    """Remove managed values from a state, also within a mapping around it,
    such as a tool call's.
    """
    if not (managed and isinstance(state, Mapping)):
        return state
    held = cast("Mapping[Any, Any]", state)
    return {
        name: _without_managed(value, managed)
        for name, value in held.items()
        if name not in managed
    }


def _shown_channel(channel: str) -> str:
    return _IN_WORDS.get(channel, channel)


def _next(
    found: CheckpointTuple, ignored: Ignored | None, managed: Collection[str]
) -> dict[str, Any]:
    state = _state(found, internal=True)
    if SENDS in state and (managed or ignored is not None):
        state[SENDS] = _as_compared(state[SENDS], ignored, managed)
    return state


def _told_next(found: CheckpointTuple) -> list[Any]:
    """Nodes to run, and the arguments that are sent to them."""
    sent: Any = found.checkpoint["channel_values"].get(SENDS) or ()
    return [
        *triggered_nodes(found.checkpoint["channel_values"]),
        *(plain(each.arg) for each in sent),
    ]


def _state(found: CheckpointTuple, *, internal: bool = False) -> dict[str, Any]:
    values = found.checkpoint["channel_values"]
    return {
        name: _comparable(values[name]) for name in sorted(values) if is_internal(name) is internal
    }


def _comparable(value: Any) -> Any:
    """Replace a value that only the graph could build by its parts."""
    return [value.snapshot, list(value.writes)] if isinstance(value, Unbuilt) else value


def _without_old_times(old: Any, new: Any) -> tuple[Any, Any]:
    """Drop the times of two usages if the record was begun by an earlier version, which stored
    times in another form.
    """
    if not (isinstance(old, Mapping) and isinstance(new, Mapping) and _is_begun_earlier(old, new)):  # pyright: ignore[reportUnknownArgumentType]
        return old, new
    kept = [name for name in cast("Mapping[str, Any]", old) if name not in _TIMES]
    both = cast("tuple[Mapping[str, Any], ...]", (old, new))
    return tuple({name: usage.get(name) for name in kept} for usage in both)  # pyright: ignore[reportReturnType]


def _is_begun_earlier(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """True if an earlier version began the record: it has a sum of times in place of spans, and
    later spans are equal.
    """
    if "spans" not in new or "began" in old:
        return "spans" in new
    later = list(old.get("spans", ()))
    alike = list(new["spans"])[len(new["spans"]) - len(later) :] == later
    return (
        alike
        and old.get("seconds", 0.0) > 0
        and old.get("thread", new.get("thread")) == new.get("thread")
    )


def _equal(serializer: SerializerProtocol, old: Any, new: Any, equal: Equal) -> bool:
    (old_kind, old_bytes), (new_kind, new_bytes) = (
        serializer.dumps_typed(old),
        serializer.dumps_typed(new),
    )
    if old_kind == new_kind and equal(old_bytes, new_bytes):
        return True
    # Earlier versions kept a tuple as a list, and a Counter as a dict.
    before = serializer.as_stock_reads(new) if isinstance(serializer, StrictSerializer) else new
    if before is not new and equal(old_bytes, serializer.dumps_typed(before)[1]):
        return True
    then, ordered = (_in_order(serializer, value) for value in (old, new))
    return then is not old and ordered is not new and _equal(serializer, then, ordered, equal)


def _in_order(serializer: SerializerProtocol, value: Any) -> Any:
    """Replace each set in a value by a sorted list, since sets have no order; the value itself if
    it holds none.
    """
    if isinstance(value, (set, frozenset)):
        items = (_in_order(serializer, item) for item in cast("set[Any]", value))
        return ["set", *sorted(items, key=lambda item: serializer.dumps_typed(item)[1])]
    if isinstance(value, Mapping):
        held = cast("Mapping[Any, Any]", value)
        entries = {name: _in_order(serializer, item) for name, item in held.items()}
        return entries if any(entries[name] is not held[name] for name in held) else held
    if isinstance(value, (list, tuple)):
        items = cast("Sequence[Any]", value)
        ordered = [_in_order(serializer, item) for item in items]
        return ordered if any(a is not b for a, b in zip(ordered, items, strict=True)) else items
    return value


def _diff(old: Any, new: Any) -> tuple[str, ...]:
    then, now = (
        json.dumps(plain(value), indent=1, ensure_ascii=False).splitlines() for value in (old, new)
    )
    return tuple(difflib.unified_diff(then, now, lineterm="", n=2))[2:]
