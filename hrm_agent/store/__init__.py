"""Run store: the checkpoints and the journal of runs in one database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hrm_agent.store.database.leases import Lease
from hrm_agent.store.journal.journal import StoreJournal
from hrm_agent.store.run_store import STORE_POINTER, RunStore, ThreadInfo, open_store

if TYPE_CHECKING:
    from hrm_agent.store.checkpoints.saver import StoreSaver

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
    """Load `StoreSaver` on first use, as LangGraph is slow to import."""
    if name == "StoreSaver":
        from hrm_agent.store.checkpoints.saver import StoreSaver

        return StoreSaver
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
