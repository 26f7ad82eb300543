"""Comparison of the tool calls and final states of a recorded run and a run that repeats it.

Ids that the two runs have by themselves are no difference: their threads, calls, and what
`hrm_agent.runtime.replay.renaming` regards as generated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, cast

from langchain_core.messages import BaseMessage
from pydantic import BaseModel

from hrm_agent.errors import GraphError, StoreError
from hrm_agent.runtime.newest_state import newest_state
from hrm_agent.runtime.replay.renaming import Renaming
from hrm_agent.store import RunStore
from hrm_agent.trajectory import ToolCall, Trajectory, content_hash

__all__ = ["other_end", "result_of"]


def other_end(
    source: RunStore, then: Trajectory, store: RunStore, now: Trajectory, graph: str
) -> str:
    """Part of the end of the run `now` that is not that of `then`, in words (empty if there is
    none). `source` and `store`: their stores. `graph`: name of the graph of `now`.
    """
    if (then.status, then.answer) != (now.status, now.answer):
        return "another answer"
    then = source.journal.with_calls(then, requests=False)
    now = store.journal.with_calls(now, requests=False)
    if [*map(_key, _in_order(then))] != [*map(_key, _in_order(now))]:
        return "other tool calls"
    try:
        old = newest_state(source, then.thread_id, graph) or {}
        new = newest_state(store, now.thread_id, graph) or {}
    except (GraphError, StoreError):
        return "a state that cannot be compared"
    ids = {now.thread_id: then.thread_id}
    copied = {(call.started_at, call.context_hash): call.id for call in then.calls}
    ids |= {
        call.id: copied.get((call.started_at, call.context_hash), call.id) for call in now.calls
    }
    ids |= {new.id: old.id for old, new in zip(_in_order(then), _in_order(now), strict=True)}
    renaming = Renaming()
    dump = store.checkpointer.serde.dumps_typed
    for name in sorted(old.keys() | new.keys()):
        before, after = (dump(_plain(each.get(name), ids)) for each in (old, new))
        if before[0] != after[0] or not renaming.equal(before[1], after[1]):
            return f"another state: {name}"
    return ""


def result_of(call: ToolCall) -> tuple[Any, ...]:
    """Parts of a tool call that a graph or a rubric can read."""
    return call.name, call.arguments, call.status, call.content, call.value, call.output


def _key(call: ToolCall) -> str:
    return content_hash(*result_of(call))


def _in_order(run: Trajectory) -> list[ToolCall]:
    """Tool calls of a run, in an order that does not depend on their times."""
    return sorted(run.tool_calls, key=_key)


def _plain(value: Any, ids: Mapping[str, str]) -> Any:
    """Value of which equal ones have equal bytes, with recorded `ids` in place of current ones."""
    if isinstance(value, str):
        return ids.get(value, value)
    if isinstance(value, BaseMessage):
        # a message without an id gets one that depends on the thread
        return [type(value).__qualname__, _plain({**value.model_dump(), "id": None}, ids)]
    if isinstance(value, BaseModel):
        held = {name: getattr(value, name) for name in type(value).model_fields}
        return [type(value).__qualname__, _plain(held, ids)]
    if is_dataclass(value) and not isinstance(value, type):
        held = {each.name: getattr(value, each.name) for each in fields(value)}
        return [type(value).__qualname__, _plain(held, ids)]
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value).items()
        return {_plain(name, ids): _plain(each, ids) for name, each in entries}
    if isinstance(value, (set, frozenset)):
        items = cast("frozenset[Any]", value)
        return ["set", *sorted((_plain(each, ids) for each in items), key=repr)]
    if isinstance(value, (list, tuple)):
        return [_plain(each, ids) for each in cast("Sequence[Any]", value)]
    return value
