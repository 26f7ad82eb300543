"""The SQLite file under an index: its tables, which files are taken for one, and transactions.

What is in the file is the truth of an index: documents with their texts, chunks as spans of them,
vectors. It is in WAL mode, so that readers and one writer do not wait for each other and a file is
whole whenever a process dies; a power failure can take the newest documents, which the next run
indexes again.
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
"""A version that is brought forward when it is opened: texts, chunks and vectors stay, words are
indexed anew.
"""
_BUSY_SECONDS = 60.0
# None: the language is to be found out, and the words are not indexed yet.
_LANGUAGES = "CREATE INDEX documents_by_language ON documents (language)"
# It is given terms with a space between them, in lower case; `ascii` splits them nowhere else.
_WORDS = "CREATE VIRTUAL TABLE words USING fts5 (text, content='', tokenize='ascii')"
_TABLES = (
    "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE folders (label TEXT PRIMARY KEY, path TEXT NOT NULL UNIQUE) WITHOUT ROWID",
    # `source` is the hash of what the document was made from: the same source is not indexed twice.
    """CREATE TABLE documents (id INTEGER PRIMARY KEY, file TEXT NOT NULL UNIQUE, source TEXT NOT NULL,
    revision TEXT NOT NULL, kind TEXT NOT NULL, text BLOB NOT NULL, language TEXT)""",
    _LANGUAGES,
    # Characters for people and citations, bytes for reading a span without the rest of the text. An
    # id is never given twice: what is ranked outside of this file can then be late, but never
    # wrong.
    """CREATE TABLE chunks (id INTEGER PRIMARY KEY AUTOINCREMENT, document INTEGER NOT NULL REFERENCES documents(id),
    start INTEGER NOT NULL, stop INTEGER NOT NULL, first_byte INTEGER NOT NULL, bytes INTEGER NOT NULL,
    tokens INTEGER NOT NULL)""",
    "CREATE INDEX chunks_of ON chunks (document)",
    _WORDS,
    # Chunks that came or went and that an engine outside of this file has not been told of.
    "CREATE TABLE unwritten (chunk INTEGER PRIMARY KEY)",
    # The vectors of one document's chunks, whose ids follow each other from `first` on.
    "CREATE TABLE vectors (first INTEGER PRIMARY KEY, data BLOB NOT NULL)",
)
_FORWARD = (
    "ALTER TABLE documents ADD COLUMN language TEXT",
    _LANGUAGES,
    "DROP TABLE words",
    _WORDS,
)


class IndexFile:
    """An open index file. Threads share it, one transaction at a time."""

    def __init__(self, path: Path | str, *, create: bool) -> None:
        self.path = Path(path)
        self._lock = threading.RLock()
        if not create and not self.path.is_file():
            raise RetrievalError(
                f"There is no index at {path}.", f"`hrm-agent index DIR --store {path}` makes one."
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
        """Writes, of which all are there afterwards or none."""
        with self._within("BEGIN IMMEDIATE") as cursor:
            yield cursor

    @contextmanager
    def reading(self) -> Generator[sqlite3.Cursor]:
        """Reads of one moment of the index."""
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
        """Refuse a file of another program, or of another version, before anything that may write
        to it is done.
        """
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
                f"The index {self.path} has version {version}; this program knows version"
                f" {_VERSION}.",
                "Delete it and index its folders again, or name another file with --store.",
            )

    def _prepare(self) -> None:
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute("PRAGMA synchronous=NORMAL")
        # asked without a lock: one who only reads does not wait for one who writes
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
        """None for a file that has no tables yet."""
        if self.connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
            return None
        return self.connection.execute("PRAGMA user_version").fetchone()[0]

    def _error(self, error: Exception) -> RetrievalError:
        if "is full" in str(error):
            hint = "What was indexed is intact: free some space and index again."
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
    """A setting on record; None if it is not."""
    row = cursor.execute("SELECT value FROM about WHERE name = ?", (name,)).fetchone()
    return row[0] if row else None


def set_about(cursor: sqlite3.Cursor, name: str, value: str | None) -> None:
    """Put a setting on record, or take it off."""
    if value is None:
        cursor.execute("DELETE FROM about WHERE name = ?", (name,))
    else:
        cursor.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", (name, value))
