"""Two checkpoints compared as bytes, and how they differ in words.

LangGraph gives each message without an id one that is drawn at random. Ids have one length, so that those of the one
state can be put in the place of the other's in the bytes themselves, wherever they stand; all else has to be equal.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol

from hrm_agent.langgraph_format import is_internal
from hrm_agent.models.call_recording import plain
from hrm_agent.runtime.time_travel.thread_diff import Change

__all__ = ["Change", "same_next_tasks", "state_changes"]

_RANDOM = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
"""A UUID of version 4."""
_TIMES = ("began", "ended", "seconds", "thread", "spans")
"""Keys of `hrm_agent.graphs.parts.budget.Usage`, now and earlier, that hold times."""


def state_changes(
    serializer: SerializerProtocol, recorded: CheckpointTuple, now: CheckpointTuple, ids: dict[str, str]
) -> tuple[Change, ...]:
    """Channels of the graph's state that differ. `ids`: random ids now -> those on record; added to."""
    old, new = _state(recorded), _state(now)
    pairs = zip(_message_ids(old), _message_ids(new), strict=False)
    ids |= {b: a for a, b in pairs if a != b and _RANDOM.fullmatch(a) and _RANDOM.fullmatch(b)}
    return tuple(
        Change(name, "", _diff(old.get(name), new.get(name)))
        for name in sorted(old.keys() | new.keys())
        if name not in old or name not in new or not _equal(serializer, *_without_old_times(old[name], new[name]), ids)
    )


def same_next_tasks(
    serializer: SerializerProtocol, recorded: CheckpointTuple, now: CheckpointTuple, ids: Mapping[str, str]
) -> bool:
    """True if the same nodes come next, with the same arguments."""
    old, new = _state(recorded, internal=True), _state(now, internal=True)
    return old.keys() == new.keys() and all(_equal(serializer, old[name], new[name], ids) for name in old)


def _state(found: CheckpointTuple, *, internal: bool = False) -> dict[str, Any]:
    values = found.checkpoint["channel_values"]
    return {name: values[name] for name in sorted(values) if is_internal(name) is internal}


def _without_old_times(old: Any, new: Any) -> tuple[Any, Any]:
    """A graph's usage without its times, if the record is of an earlier version, which kept them in another form."""
    if not (isinstance(old, Mapping) and isinstance(new, Mapping) and "began" in old and "spans" in new):
        return old, new
    kept = [name for name in cast("Mapping[str, Any]", old) if name not in _TIMES]
    both = cast("tuple[Mapping[str, Any], ...]", (old, new))
    return tuple({name: usage.get(name) for name in kept} for usage in both)  # pyright: ignore[reportReturnType]


def _equal(serializer: SerializerProtocol, old: Any, new: Any, ids: Mapping[str, str]) -> bool:
    (old_kind, old_bytes), (new_kind, new_bytes) = serializer.dumps_typed(old), serializer.dumps_typed(new)
    if old_bytes != new_bytes:
        for drawn, recorded in ids.items():
            new_bytes = new_bytes.replace(drawn.encode(), recorded.encode())
    return (old_kind, old_bytes) == (new_kind, new_bytes)


def _message_ids(value: Any) -> Iterator[str]:
    """Ids of all messages, in their order."""
    if isinstance(value, BaseMessage):
        yield value.id or ""
    elif isinstance(value, Mapping):
        for item in cast("Mapping[Any, Any]", value).values():
            yield from _message_ids(item)
    elif isinstance(value, (list, tuple)):
        for item in cast("list[Any]", value):
            yield from _message_ids(item)


def _diff(old: Any, new: Any) -> tuple[str, ...]:
    then, now = (json.dumps(plain(value), indent=1, ensure_ascii=False).splitlines() for value in (old, new))
    return tuple(difflib.unified_diff(then, now, lineterm="", n=2))[2:]
