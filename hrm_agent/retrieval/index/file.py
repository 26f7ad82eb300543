"""SQLite file of an index: tables, checks on opening, and transactions.

The file is the source of truth of an index: documents with their texts, chunks as spans of them,
vectors. It is in WAL mode, so readers and one writer do not wait for each other, and the file is
consistent whenever a process dies. A power failure can lose the newest documents, which the next
run indexes again.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from hrm_agent.errors import RetrievalError

__all__ = ["IndexFile", "about", "set_about"]

_APPLICATION = 0x68726D69
_VERSION = 3
_OLD = 2
"""Previous version, migrated on opening. Texts, chunks and vectors are kept, and words are indexed
again.
"""
_BUSY_SECONDS = 60.0
# A language is NULL if it is not known yet. Then the words are not indexed.
_LANGUAGES = "CREATE INDEX documents_by_language ON documents (language)"
# The table gets terms in lower case with a space between them. `ascii` splits only at these spaces.
_WORDS = "CREATE VIRTUAL TABLE words USING fts5 (text, content='', tokenize='ascii')"
_TABLES = (
    "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE folders (label TEXT PRIMARY KEY, path TEXT NOT NULL UNIQUE) WITHOUT ROWID",
    # `source` is the hash of what the document was made from. An unchanged source is not indexed
    # again.
    """CREATE TABLE documents (id INTEGER PRIMARY KEY, file TEXT NOT NULL UNIQUE, source TEXT NOT NULL,
    revision TEXT NOT NULL, kind TEXT NOT NULL, text BLOB NOT NULL, language TEXT)""",
    _LANGUAGES,
    # Character offsets are for users and citations. Byte offsets are for reading a span without the
    # rest of the text. An id is never reused, so a matrix of vectors in memory may be outdated, but
    # never has a vector under a wrong id.
    """CREATE TABLE chunks (id INTEGER PRIMARY KEY AUTOINCREMENT, document INTEGER NOT NULL REFERENCES documents(id),
    start INTEGER NOT NULL, stop INTEGER NOT NULL, first_byte INTEGER NOT NULL, bytes INTEGER NOT NULL,
    tokens INTEGER NOT NULL)""",
    "CREATE INDEX chunks_of ON chunks (document)",
    _WORDS,
    # A row has the vectors of one document's chunks, whose consecutive ids begin with `first`.
    "CREATE TABLE vectors (first INTEGER PRIMARY KEY, data BLOB NOT NULL)",
)
_FORWARD = (
    "ALTER TABLE documents ADD COLUMN language TEXT",
    _LANGUAGES,
    "DROP TABLE words",
    _WORDS,
)


class IndexFile:
    """Open index file. Threads share it, one transaction at a time."""

    def __init__(self, path: Path | str, *, create: bool) -> None:
        self.path = Path(path)
        self._lock = threading.RLock()
        if not create and not self.path.is_file():
            raise RetrievalError(
                f"There is no index at {path}.",
                f"Run `hrm-agent index DIR --store {path}` to create it.",
            )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                self._look(create)
            self.connection = sqlite3.connect(
                self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._prepare()
        except (sqlite3.Error, OSError) as error:
            raise self._error(error) from error

    def close(self) -> None:
        with self._lock:
            self.connection.close()

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Cursor]:
        """Write in one transaction: everything is committed, or nothing."""
        with self._within("BEGIN IMMEDIATE") as cursor:
            yield cursor

    @contextmanager
    def reading(self) -> Generator[sqlite3.Cursor]:
        """Read from one snapshot of the index."""
        with self._within("BEGIN") as cursor:
            yield cursor

    @contextmanager
    def _within(self, begin: str) -> Generator[sqlite3.Cursor]:
        with self._lock:
            try:
                with closing(self.connection.cursor()) as cursor:
                    cursor.execute(begin)
                    yield cursor
                    cursor.execute("COMMIT")
            except BaseException as error:
                with suppress(sqlite3.Error):
                    self.connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise self._error(error) from error
                raise

    def _look(self, create: bool) -> None:
        """Refuse a file of another program or version before anything may write to it."""
        with closing(sqlite3.connect(self.path, timeout=_BUSY_SECONDS)) as connection:
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not tables and create:
            return
        if application != _APPLICATION:
            raise RetrievalError(
                f"{self.path} is not an index of documents.", "Name another file with --store."
            )
        if version not in (_OLD, _VERSION):
            raise RetrievalError(
                f"The index {self.path} has version {version}, but this program can only read"
                f" version {_VERSION}.",
                "Delete it and index its folders again, or name another file with --store.",
            )

    def _prepare(self) -> None:
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute("PRAGMA synchronous=NORMAL")
        # The version is read without a lock, so a reader does not wait for a writer.
        if self._version() == _VERSION:
            return
        with self.transaction() as cursor:
            version = self._version()
            if version == _VERSION:
                return
            for statement in _FORWARD if version == _OLD else _TABLES:
                cursor.execute(statement)
            cursor.execute(f"PRAGMA application_id={_APPLICATION}")
            cursor.execute(f"PRAGMA user_version={_VERSION}")

    def _version(self) -> int | None:
        """Version of the file's tables (None without tables)."""
        if self.connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
            return None
        return self.connection.execute("PRAGMA user_version").fetchone()[0]

    def _error(self, error: Exception) -> RetrievalError:
        if "is full" in str(error):
            hint = "Documents indexed before are kept. Free some space and index again."
            return RetrievalError(f"The disk that holds {self.path} is full.", hint)
        if "not a database" in str(error):
            return RetrievalError(
                f"{self.path} is not an index of documents.", "Name another file with --store."
            )
        return RetrievalError(
            f"The index {self.path} cannot be used: {error}.",
            "Check that its folder exists and is writable.",
        )


def about(cursor: sqlite3.Cursor, name: str) -> str | None:
    """Return a recorded setting (None if it is missing)."""
    row = cursor.execute("SELECT value FROM about WHERE name = ?", (name,)).fetchone()
    return row[0] if row else None


def set_about(cursor: sqlite3.Cursor, name: str, value: str | None) -> None:
    """Record a setting. None deletes it."""
    if value is None:
        cursor.execute("DELETE FROM about WHERE name = ?", (name,))
    else:
        cursor.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", (name, value))
