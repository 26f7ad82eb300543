"""The options that a thread was begun with, kept in its store: any process that opens the store can resume the thread.

A text per thread (TOML, for `hrm_agent.config`), sealed like all else. Earlier versions kept it in a file beside the
store, which is read where the store has none.
"""

from __future__ import annotations

from pathlib import Path

from hrm_agent.store.cipher import Cipher
from hrm_agent.store.cursors import Cursor
from hrm_agent.store.damage import reading
from hrm_agent.store.database import Database
from hrm_agent.trajectory import content_hash

__all__ = ["ThreadOptions", "options_in"]


class ThreadOptions:
    """The options of a store's threads."""

    def __init__(self, database: Database, cipher: Cipher) -> None:
        self._database, self._cipher = database, cipher

    def write(self, thread_id: str, text: str) -> None:
        """Keep the options of a thread, in place of what was kept."""
        self._database.add(lambda cursor: self.insert(cursor, thread_id, text), thread_id)

    def write_later(self, thread_id: str, text: str) -> None:
        """Write options with the next commit."""
        self._database.defer(lambda cursor: self.insert(cursor, thread_id, text))

    def insert(self, cursor: Cursor, thread_id: str, text: str) -> None:
        """The same as part of another transaction."""
        cursor.execute(
            "INSERT INTO options (thread_id, record) VALUES (?, ?) "
            "ON CONFLICT (thread_id) DO UPDATE SET record = excluded.record",
            (thread_id, self._cipher.seal(text.encode(), "options", thread_id)),
        )

    def read(self, thread_id: str) -> str | None:
        """None where none are kept. Raises `StoreError` for a damaged row."""
        query = "SELECT record FROM options WHERE thread_id = ?"
        with self._database.read() as cursor:
            row = cursor.execute(query, (thread_id,)).fetchone()
        if row is None:
            return self.in_a_file(thread_id)
        with reading("row of options of thread", repr(thread_id)):
            return self._cipher.open(row[0], "options", thread_id).decode()

    def in_a_file(self, thread_id: str, trajectory_id: str = "") -> str | None:
        """What an earlier version kept beside the store."""
        return options_in(self._database.folder, trajectory_id or content_hash("trajectory", thread_id)[:16])


def options_in(folder: Path, trajectory_id: str) -> str | None:
    """What an earlier version kept in the folder of a store."""
    try:
        return (folder / "threads" / trajectory_id / "config.toml").read_text(encoding="utf-8")
    except OSError:
        return None
