"""Two checkpoints compared as bytes, and how they differ in words.

Generated ids may be others (`hrm_agent.runtime.replay.renaming`), and what a person wants ignored may differ
(`hrm_agent.runtime.replay.ignored_paths`); all else has to be equal.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol

from hrm_agent.langgraph_format import is_internal
from hrm_agent.models.call_recording import plain
from hrm_agent.runtime.replay.ignored_paths import Ignored
from hrm_agent.runtime.time_travel.thread_diff import Change
from hrm_agent.store.serializer import StrictSerializer

__all__ = ["Change", "Equal", "same_next_tasks", "state_changes"]

Equal = Callable[[bytes, bytes], bool]
"""Whether serialised values, the recorded and the replayed one, count as equal: `Renaming.equal`."""
_TIMES = ("began", "ended", "seconds", "thread", "spans")
"""Keys of `hrm_agent.graphs.parts.budget.Usage`, now and earlier, that hold times."""


def state_changes(
    serializer: SerializerProtocol,
    recorded: CheckpointTuple,
    now: CheckpointTuple,
    equal: Equal,
    ignored: Ignored | None = None,
) -> tuple[Change, ...]:
    """Channels of the graph's state that differ, ids and what is `ignored` apart."""
    old, new = _state(recorded), _state(now)
    shown_old, shown_new = old, new
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
    serializer: SerializerProtocol, recorded: CheckpointTuple, now: CheckpointTuple, equal: Equal
) -> bool:
    """True if the same nodes come next, with the same arguments."""
    old, new = _state(recorded, internal=True), _state(now, internal=True)
    return old.keys() == new.keys() and all(_equal(serializer, old[name], new[name], equal) for name in old)


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


def _equal(serializer: SerializerProtocol, old: Any, new: Any, equal: Equal) -> bool:
    (old_kind, old_bytes), (new_kind, new_bytes) = serializer.dumps_typed(old), serializer.dumps_typed(new)
    if old_kind == new_kind and equal(old_bytes, new_bytes):
        return True
    # Earlier versions kept a tuple as a list, and a Counter as a dict.
    before = serializer.as_stock_reads(new) if isinstance(serializer, StrictSerializer) else new
    return before is not new and equal(old_bytes, serializer.dumps_typed(before)[1])


def _diff(old: Any, new: Any) -> tuple[str, ...]:
    then, now = (json.dumps(plain(value), indent=1, ensure_ascii=False).splitlines() for value in (old, new))
    return tuple(difflib.unified_diff(then, now, lineterm="", n=2))[2:]
