"""Base of a store's SQLite file, for writing and for reading only.

A foreign file, or one of another version, is refused before any operation that may write to it.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from hrm_agent.errors import StoreDamagedError, StoreError, StoreFullError, StoreVersionError
from hrm_agent.store.database.database import Database
from hrm_agent.store.database.tables import (
    FIRST_FORWARD,
    FIRST_TABLE,
    LATER_COLUMNS,
    LATER_INDEXES,
    STORE_VERSION,
    table_names,
)

__all__ = [
    "BUSY_SECONDS",
    "SQLITE_TYPES",
    "SqliteFile",
    "columns_of",
    "lacks_index",
    "lacks_table",
    "missing_tables",
    "sqlite_url",
    "version_in",
]

BUSY_SECONDS = 60.0
SQLITE_TYPES = {
    "serial": "INTEGER PRIMARY KEY",
    "bytes": "BLOB",
    "integer": "INTEGER",
    "real": "REAL",
    "binary": "",
    "clustered": "WITHOUT ROWID",
}
"""Types of columns for `tables.schema`."""


class SqliteFile(Database):
    """SQLite file with this project's tables."""

    def __init__(self, path: Path, options: str = "") -> None:
        super().__init__()
        self.path = self._file = path
        self.folder = path.parent
        self.url = sqlite_url(path, options)

    def _refuse_foreign(self, connection: sqlite3.Connection, *, create: bool) -> int:
        """Refuse a foreign file, or one of a version that cannot be upgraded. Returns its version."""
        version = version_in(connection)
        tables = _names(connection, "table")
        self._refuse_newer(version)
        if 0 < version < FIRST_FORWARD and FIRST_TABLE in tables:
            raise StoreVersionError(
                f"The store {self._file} has schema version {version}; this program writes version"
                f" {STORE_VERSION}.",
                "Nothing was changed. hrm-agent 0.2.0 copies it into a new one:"
                f" `hrm-agent store migrate {self._file} NEW.db`.",
            )
        if FIRST_TABLE not in tables and (tables or not create):
            what = (
                "an SQLite file of another program"
                if tables
                else "an empty file, in which nothing was ever stored"
            )
            hint = "Name a store or a run folder."
            if "checkpoints" in tables:
                hint = (
                    f"`hrm-agent store migrate {self._file} NEW.db` takes over the checkpoints of a"
                    " SqliteSaver."
                )
            raise StoreError(f"{self._file} is not a run store: {what}.", hint)
        return version

    def _refuse_newer(self, version: int) -> None:
        if version > STORE_VERSION:
            raise StoreVersionError(
                f"The store {self._file} has schema version {version}; versions up to"
                f" {STORE_VERSION} are known here.",
                "Nothing was changed. Update with `pip install --upgrade hrm-agent`, or name"
                " another store.",
            )

    def size(self) -> int:
        files = (Path(f"{self._file}{suffix}") for suffix in ("", "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def problems(self) -> list[str]:
        with self.read() as cursor:
            found = [str(row[0]) for row in cursor.execute("PRAGMA integrity_check").fetchall()]
        return [] if found == ["ok"] else found

    def store_error(self, error: Exception) -> StoreError:
        text = str(error)
        if "is full" in text or "No space left" in text:
            return StoreFullError(
                f"The disk that holds {self._file} is full.",
                "What was committed is intact: free some space, then `hrm-agent resume` the run.",
            )
        if "is locked" in text or "is busy" in text:
            return StoreError(
                f"Another process has been writing to {self._file} for {BUSY_SECONDS:.0f} seconds.",
                "Wait for it and try again; what was committed is intact.",
            )
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CORRUPT:
            return StoreDamagedError(
                f"The file {self._file} is damaged: {text}.",
                "`hrm-agent store verify` lists what cannot be read. Take a copy from before, or"
                " save what can be read with SQLite's own `.recover`.",
            )
        if isinstance(error, sqlite3.DatabaseError) and "not a database" in text:
            return StoreError(
                f"{self._file} is not a run store: {text}.", "Name a store or a run folder."
            )
        return StoreError(
            f"The store {self._file} cannot be used: {text}.",
            "Check that the folder exists and is writable.",
        )


def sqlite_url(path: Path, options: str = "") -> str:
    """URL of a store's file. Question marks and percent signs in the path are escaped as `%3F` and
    `%25`.
    """
    return f"sqlite:///{str(path).replace('%', '%25').replace('?', '%3F')}" + (
        f"?{options}" if options else ""
    )


def version_in(connection: sqlite3.Connection | sqlite3.Cursor) -> int:
    """Schema version (0 in a new file or another program's)."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def lacks_table(connection: sqlite3.Connection) -> bool:
    """True if a table or a column that this version reads is missing."""
    if missing_tables(connection):
        return True
    return any(column not in columns_of(connection, table) for table, column, _ in LATER_COLUMNS)


def missing_tables(connection: sqlite3.Connection) -> set[str]:
    """Tables of this version that the file lacks."""
    return set(table_names()) - _names(connection, "table")


def lacks_index(connection: sqlite3.Connection) -> bool:
    """True if an index is missing. Without it reading works, but is slower."""
    return not _names(connection, "index").issuperset(LATER_INDEXES)


def columns_of(connection: sqlite3.Connection | sqlite3.Cursor, table: str) -> set[str]:
    """Columns of a table."""
    return {str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")}


def _names(connection: sqlite3.Connection, kind: str) -> set[str]:
    return {
        str(name)
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = ?", (kind,))
    }
