"""The run store: where checkpoints and journal of a run lie together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hrm_agent.store.database.leases import Lease
from hrm_agent.store.journal import StoreJournal
from hrm_agent.store.run_store import STORE_POINTER, RunStore, ThreadInfo, open_store

if TYPE_CHECKING:
    from hrm_agent.store.saver import StoreSaver

__all__ = [
    "STORE_POINTER",
    "Lease",
    "RunStore",
    "StoreJournal",
    "StoreSaver",
    "ThreadInfo",
    "open_store",
]


def __getattr__(name: str) -> Any:
    """LangGraph takes a while to import: the checkpointer is loaded when it is asked for."""
    if name == "StoreSaver":
        from hrm_agent.store.saver import StoreSaver

        return StoreSaver
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
