"""Newest state of a thread, for readers outside of its run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hrm_agent.errors import GraphError
from hrm_agent.runtime.execution.loading import load_graph
from hrm_agent.runtime.state import StateReader, Unbuilt
from hrm_agent.store import RunStore

__all__ = ["newest_state"]


def newest_state(store: RunStore, thread: str, graph: str) -> Mapping[str, Any] | None:
    """Newest state by channel (None if the thread has no checkpoint).

    Values of the types that the state of `graph` declares are read if its code exists. Otherwise
    only values of plain types, and of the types that the store was opened with, are read. Raises
    `StoreError` for a value of another type, and `GraphError` for one that only the graph's code
    could make (of a `DeltaChannel`).
    """
    saver = store.checkpointer
    compiled = None
    gone = ""
    try:
        compiled = load_graph(graph)
        saver = saver.allowing(compiled)
    except GraphError as error:
        gone = error.message
    found = saver.get_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": ""}})
    if found is None:
        return None
    state = StateReader(saver, compiled).values(found)
    unknown = [name for name, value in state.items() if isinstance(value, Unbuilt)]
    if unknown:
        raise GraphError(
            f"Thread {thread!r} holds only the writes of {', '.join(unknown)}. A reducer of its"
            " graph makes the value from them."
            f" {gone or f'The graph {graph!r} has no such channel now.'}",
            "Make the graph importable as it was, and try again.",
        )
    return state
