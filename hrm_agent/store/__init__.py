"""The run store: where checkpoints and journal of a run lie together."""

from hrm_agent.store.journal import SqliteJournal
from hrm_agent.store.run_store import RunStore, open_store
from hrm_agent.store.saver import StoreSaver

__all__ = ["RunStore", "SqliteJournal", "StoreSaver", "open_store"]
