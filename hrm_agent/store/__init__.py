"""The run store: where checkpoints and journal of a run lie together."""

from hrm_agent.store.journal import StoreJournal
from hrm_agent.store.run_store import STORE_POINTER, RunStore, ThreadInfo, open_store
from hrm_agent.store.saver import StoreSaver

__all__ = ["STORE_POINTER", "RunStore", "StoreJournal", "StoreSaver", "ThreadInfo", "open_store"]
