"""Options of threads: the settings that a thread was started with, as TOML for `hrm_agent.config`.

They are encrypted with the rest of the store, and any process that opens it can resume the thread.
Earlier versions kept them in a file beside the store, which is read if the store has none.
"""

from __future__ import annotations

from hrm_agent.store.database.database import Database
from hrm_agent.store.journal.records import OPTIONS, RecordTable
from hrm_agent.store.values.cipher import Cipher
from hrm_agent.trajectory import content_hash

__all__ = ["ThreadOptions"]


class ThreadOptions:
    """Options of a store's threads."""

    def __init__(self, database: Database, cipher: Cipher) -> None:
        self._database = database
        self.rows = RecordTable(OPTIONS, database, cipher)
        """Rows of the options, by thread."""

    def write(self, thread_id: str, text: str) -> None:
        """Write the options of a thread. They replace previous ones."""
        self._database.add(lambda cursor: self.rows.insert(cursor, text, thread_id), thread_id)

    def write_later(self, thread_id: str, text: str) -> None:
        """Write options with the next commit."""
        self._database.defer(lambda cursor: self.rows.insert(cursor, text, thread_id))

    def read(self, thread_id: str) -> str | None:
        """Options of a thread (None if missing). Raises `StoreError` for a damaged row."""
        found = self.rows.read("thread_id = ?", (thread_id,))
        return found[0] if found else self.in_a_file(thread_id)

    def in_a_file(self, thread_id: str, trajectory_id: str = "") -> str | None:
        """Options in the file that an earlier version kept beside the store (None if missing)."""
        name = trajectory_id or content_hash("trajectory", thread_id)[:16]
        file = self._database.folder / "threads" / name / "config.toml"
        try:
            return file.read_text(encoding="utf-8")
        except OSError:
            return None
