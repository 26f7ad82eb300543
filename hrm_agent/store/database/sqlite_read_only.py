"""Read-only SQLite store: readers create no files beside it and do not block writers.

SQLite's own read-only mode does both. A connection to a file in WAL mode creates `-wal` and `-shm`
beside the file and cannot remove them. While the connection is open, a writer that closes cannot
move its log into the file, and a copy of the file alone lacks the log's rows. So:

* Each read has a connection of its own, which takes 0.3 ms. Between two reads nothing is held.
  A read inside a read of the same thread shares its connection and snapshot, so several reads
  belong inside one `read()`. A command that ends soon keeps a connection for each of its threads
  instead (`keeps_connections`).
* If the log is missing or empty, the file is opened as immutable, without locks and without files
  beside it. A writer that starts meanwhile writes to a new log, which this reader does not read.
  If the log is moved into the file during the read, the result may be a mixture, and
  `StoreChangedError` is raised.
* If the log has rows, the files exist already, since a writer is running or was killed. The file is
  opened with `mode=ro`. The first connection after a crash rebuilds the log's index, in `-shm`.

A store of an earlier version is read unchanged. Tables that it lacks count as empty: each
connection has temporary tables in memory in their place.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Generator, Hashable
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from hrm_agent.errors import StoreChangedError, StoreError
from hrm_agent.store.database.cursors import Cursor
from hrm_agent.store.database.read_only import ReadOnlyDatabase
from hrm_agent.store.database.sqlite_file import SQLITE_TYPES, SqliteFile, missing_tables
from hrm_agent.store.database.tables import FIRST_TABLE, temporary_tables

__all__ = ["ReadOnlySqlite", "change_mark_of", "is_run_store", "no_store_at"]

_BUSY_SECONDS = 10.0
_CACHE_KILOBYTES = 8_000
_SETTLED_SECONDS = 0.1
"""Age in seconds above which a file's time stamp is reliable. It can be some milliseconds older
than a later change.
"""

_Stamp = tuple[int, ...]

_MOST_NAMED = 4


class ReadOnlySqlite(ReadOnlyDatabase, SqliteFile):
    """SQLite file with this project's tables, opened for each read."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise no_store_at(path)
        super().__init__(path)
        self.level = ""
        self._identity = _stamp(path)[:2]
        self._within = threading.local()
        self.keeps_connections = False
        """True if a thread's connection stays open for its next read."""
        self._kept: list[sqlite3.Connection] = []
        self._missing = list[str]()
        with self._connected() as connection:
            self._refuse_foreign(connection, create=False)
            self._missing = temporary_tables(missing_tables(connection), **SQLITE_TYPES)

    def change_mark(self) -> Hashable:
        return change_mark_of(self._file)

    def is_gone(self) -> bool:
        return _stamp(self._file)[:2] != self._identity

    @contextmanager
    def _read(self) -> Generator[Cursor]:
        outer: sqlite3.Connection | None = getattr(self._within, "connection", None)
        if outer is not None:
            with self._in_words(), closing(outer.cursor()) as cursor:
                yield cursor
            return
        with self._connected() as connection, closing(connection.cursor()) as cursor:
            cursor.execute("BEGIN")
            self._within.connection = connection
            try:
                yield cursor
            finally:
                self._within.connection = None
                with suppress(sqlite3.Error):
                    cursor.execute("ROLLBACK")

    @contextmanager
    def _connected(self) -> Generator[sqlite3.Connection]:
        found = _stamp(self._file)[:2]
        if not found:
            raise StoreError(
                f"The store {self._file} is not there any more.", "It was moved or deleted."
            )
        if found != self._identity:
            raise StoreError(
                f"The store {self._file} was replaced by another file.",
                "Open it again with open_store.",
            )
        before = _stamp(self._file)
        immutable = _has_no_log(self._file)
        try:
            with self._in_words(), self._opened(before if immutable else ()) as connection:
                yield connection
        except StoreError as error:
            if (
                immutable
                and isinstance(error.__cause__, sqlite3.Error)
                and _stamp(self._file) != before
            ):
                raise self._changed() from error
            raise
        if immutable and _stamp(self._file) != before:
            raise self._changed()

    @contextmanager
    def _opened(self, stamp: _Stamp) -> Generator[sqlite3.Connection]:
        """Open a connection. `stamp`: state of a file to open as immutable (empty to read its log
        too).
        """
        kept: tuple[_Stamp, sqlite3.Connection] | None = getattr(self._within, "kept", None)
        self._within.kept = None
        if kept is not None and kept[0] != stamp:
            kept[1].close()
            kept = None
        connection = kept[1] if kept is not None else self._connect(immutable=bool(stamp))
        keeps = self.keeps_connections and (
            not stamp or time.time_ns() - stamp[3] > _SETTLED_SECONDS * 1e9
        )
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if not keeps:
            connection.close()
            return
        self._within.kept = (stamp, connection)
        if kept is None:
            self._kept.append(connection)

    def _connect(self, *, immutable: bool) -> sqlite3.Connection:
        connection = _connection(self._file, immutable=immutable)
        if self._missing:
            connection.execute("PRAGMA temp_store=MEMORY")
            for statement in self._missing:
                connection.execute(statement)
        connection.execute("PRAGMA query_only=1")
        # views and triggers of a foreign file must not call functions
        connection.execute("PRAGMA trusted_schema=0")
        connection.execute(f"PRAGMA cache_size=-{_CACHE_KILOBYTES}")
        return connection

    @contextmanager
    def _in_words(self) -> Generator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self.store_error(error) from error

    def _changed(self) -> StoreChangedError:
        return StoreChangedError(
            f"The store {self._file} was written to while it was being read.", "Read it again."
        )

    def _close(self) -> None:
        for connection in self._kept:
            connection.close()


def change_mark_of(path: Path) -> Hashable:
    """Value that differs after every commit to a file, without opening it. One commit may change it
    twice.
    """
    stamps = [_stamp(Path(f"{path}{suffix}")) for suffix in ("", "-wal")]
    now = time.time_ns()
    fresh = any(stamp and abs(now - stamp[3]) < _SETTLED_SECONDS * 1e9 for stamp in stamps)
    return (*stamps, fresh)


def is_run_store(path: Path) -> bool:
    """True if a file is a run store of any version. An unreadable file gives False, without an
    error.
    """
    if not path.is_file():  # opening a pipe would wait for its writer
        return False
    try:
        with closing(_connection(path, immutable=_has_no_log(path))) as connection:
            query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
            return connection.execute(query, (FIRST_TABLE,)).fetchone() is not None
    except sqlite3.Error:
        return False


def no_store_at(path: Path) -> StoreError:
    """Error for a missing store, which names the stores beside it."""
    what = ": it is no file" if path.exists() else ""
    beside = [each for each in sorted(path.parent.glob("*.db")) if is_run_store(each)]
    beside += [each.parent for each in sorted(path.parent.glob("*/store.db"))]
    named = ", ".join(map(str, beside[:_MOST_NAMED])) + (
        ", ..." if len(beside) > _MOST_NAMED else ""
    )
    hint = f"Stores beside it: {named}." if beside else "`hrm-agent run TASK` makes one."
    if (path.parent / "config.json").is_file():
        hint = f"The folder is a model's: `hrm-agent eval --policy {path.parent}` asks it."
    return StoreError(f"There is no store at {path}{what}.", hint)


def _stamp(path: Path) -> _Stamp:
    """Device, number, size and modification time of a file (empty if it is missing)."""
    try:
        found = os.stat(path)  # noqa: PTH116 - many times a second
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _has_no_log(path: Path) -> bool:
    """True if all committed rows are in the file itself."""
    return all(
        _stamp(Path(f"{path}{suffix}"))[2:3] in ((), (0,)) for suffix in ("-wal", "-journal")
    )


def _connection(path: Path, *, immutable: bool) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode=ro" + ("&immutable=1" if immutable else "")
    return sqlite3.connect(
        uri, uri=True, check_same_thread=False, timeout=_BUSY_SECONDS, isolation_level=None
    )
