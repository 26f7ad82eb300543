"""The run store: where checkpoints and journal of a run lie together."""

from hrm_agent.store.journal import StoreJournal
from hrm_agent.store.run_store import RunStore, ThreadInfo, open_store
from hrm_agent.store.saver import StoreSaver

__all__ = ["RunStore", "StoreJournal", "StoreSaver", "ThreadInfo", "open_store"]
