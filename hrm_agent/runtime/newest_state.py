"""The newest state of a thread, for those who look at a run from outside."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from hrm_agent.errors import GraphError
from hrm_agent.runtime.execution.loading import load_graph
from hrm_agent.store import RunStore

__all__ = ["newest_state"]


def newest_state(store: RunStore, thread: str, graph: str) -> Mapping[str, Any] | None:
    """By channel; None where the thread has no checkpoint.

    Values of the types that the state of `graph` declares are read where its code is there; where it is gone, those of
    plain types and of the types that the store was opened with. Raises `StoreError` for a value of another type.
    """
    saver = store.checkpointer
    with suppress(GraphError):
        saver = saver.allowing(load_graph(graph))
    found: Any = saver.get_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": ""}})
    return None if found is None else found.checkpoint["channel_values"]
