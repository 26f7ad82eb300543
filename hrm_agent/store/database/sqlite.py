"""Store in one SQLite file, without installation: one writer at a time, with parallel readers.

WAL mode is used, at one of two levels (`sqlite:///runs/x.db?level=power`):

* `process`, the default (`synchronous=NORMAL`): every commit survives the death of the process at
  any moment. After a power failure the newest commits can be missing, but none is partial. Lost
  work runs again on resume. A commit takes some 30 microseconds, less than a hand-over to another
  thread, so it is done in the calling thread.
* `power` (`synchronous=FULL`): every commit survives a power failure. It waits for the disk, so one
  thread commits for all (`Committer`).

A transaction takes the write lock when it begins. If it took the lock only at its first write, a
writer in between could make it fail, regardless of the timeout, with the "database is locked" that
other programs report.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from hrm_agent.errors import ConfigError
from hrm_agent.store.database.committer import Committer
from hrm_agent.store.database.cursors import Cursor, Work, WriteCursor, epoch_of
from hrm_agent.store.database.fencing import leases_of, read_leases
from hrm_agent.store.database.sqlite_file import (
    BUSY_SECONDS,
    SQLITE_TYPES,
    SqliteFile,
    columns_of,
    lacks_index,
    lacks_table,
    version_in,
)
from hrm_agent.store.database.sqlite_read_only import no_store_at
from hrm_agent.store.database.tables import (
    LATER_COLUMNS,
    STORE_VERSION,
    note_brought_forward,
    schema,
)

__all__ = ["SqliteDatabase"]

T = TypeVar("T")
_LEVELS = {"process": "NORMAL", "power": "FULL"}
_CACHE_KILOBYTES = 16_000
_REMEMBERED = 1024
"""Number of valid leases that are remembered. They are not queried again until another process
writes.
"""


class SqliteDatabase(SqliteFile):
    """SQLite store for writing: one connection to write and one to read."""

    def __init__(self, path: Path, *, create: bool = True, level: str = "process") -> None:
        if level not in _LEVELS:
            raise ConfigError(
                f"There is no durability level {level!r}.", f"Use {', '.join(_LEVELS)}."
            )
        if not create and not path.exists():
            raise no_store_at(path)
        super().__init__(path, "" if level == "process" else f"level={level}")
        self.level = level
        self.is_blocking = level == "power"
        self._writing = threading.RLock()
        self._reading = threading.RLock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                # A journal left by a crash has to be rolled back before the file can be read.
                mode = "rw" if Path(f"{self._file}-journal").exists() else "ro"
                uri = f"{self._file.absolute().as_uri()}?mode={mode}"
                with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS)) as connection:
                    self._refuse_foreign(connection, create=create)
            _make_private(path)
            self._writer = self._connect()
            self._data_version: int | None = None
            self._prepare()
            self._reader = self._connect()
        except (sqlite3.Error, OSError) as error:
            raise self.store_error(error) from error
        self._committer = Committer(self._commit) if self.is_blocking else None

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._file,
            check_same_thread=False,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            cached_statements=256,
        )
        _into_wal(connection)
        connection.execute(f"PRAGMA synchronous={_LEVELS[self.level]}")
        connection.execute(f"PRAGMA cache_size=-{_CACHE_KILOBYTES}")
        return connection

    def _prepare(self) -> None:
        """Create the tables in a new file, and add those that an older file lacks."""
        writer = self._writer
        version = version_in(self._writer)
        if version == STORE_VERSION and not (lacks_table(writer) or lacks_index(writer)):
            return
        with self._transaction() as cursor:
            # another process may have upgraded it meanwhile
            self._refuse_newer(version_in(cursor))
            for statement in schema(**SQLITE_TYPES):
                cursor.execute(statement)
            for table, column, type_ in LATER_COLUMNS:
                if column not in columns_of(cursor, table):
                    cursor.execute(
                        f"ALTER TABLE {table} ADD COLUMN {column} {type_.format(**SQLITE_TYPES)}"
                    )
            cursor.execute(f"PRAGMA user_version={STORE_VERSION}")
        note_brought_forward(self.url, version)

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Cursor]:
        with self._writing, closing(self._writer.cursor()) as cursor:
            try:
                cursor.execute("BEGIN IMMEDIATE")
                yield cursor
                cursor.execute("COMMIT")
            except sqlite3.Error as error:
                self._rollback()
                raise self.store_error(error) from error
            except BaseException:
                self._rollback()
                raise

    @contextmanager
    def _one_transaction(self) -> Generator[None]:
        try:
            with self._transaction():
                yield
        except BaseException:
            self._data_version = None
            raise

    @contextmanager
    def _part_of_whole(self) -> Generator[sqlite3.Cursor]:
        with closing(self._writer.cursor()) as cursor:
            try:
                yield cursor
            except sqlite3.Error as error:
                raise self.store_error(error) from error

    def _rollback(self) -> None:
        with suppress(sqlite3.Error):  # on a full disk SQLite may have rolled back by itself
            self._writer.execute("ROLLBACK")

    def _transact(self, works: Sequence[Work[Any]]) -> list[Any]:
        try:
            with self._part_of_whole() if self._whole else self._transaction() as cursor:
                self.transaction += 1
                # another connection's commits change it
                version = cursor.execute("PRAGMA data_version").fetchone()[0]
                if version != self._data_version:
                    self.epoch = epoch_of(cursor)
                    self._data_version = version
                    self.heads = {}
                    self.fence.valid = set()
                if len(self.fence.valid) > _REMEMBERED:
                    self.fence.valid = set()
                # others take over by a commit, which is noticed
                if unknown := leases_of(works) - self.fence.valid:
                    self.fence.valid |= read_leases(cursor, self.fence.owner, unknown)
                return [work(cursor) for work in works]
        except BaseException:  # even if the commit failed, nothing is remembered
            self._data_version = None
            raise

    def _submit(self, work: Work[T], *, waits: bool) -> Future[T]:
        if self._committer is not None:
            return self._committer.submit(work, waits=waits)
        return self._at_once(work)

    def exclusive(self, work: Work[T]) -> T:
        def alone(cursor: WriteCursor) -> T:
            cursor.execute("PRAGMA secure_delete=ON")  # no deleted text stays on free pages
            try:
                result = work(cursor)
            finally:
                cursor.execute("PRAGMA secure_delete=OFF")
            # Later work in the same commit must notice that the epoch may have changed.
            self.transaction += 1
            self.epoch = epoch_of(cursor)
            self._data_version = None
            return result

        try:
            return self.write(alone)
        finally:
            self._shed_log()

    def _shed_log(self) -> None:
        """Remove deleted text from the log too, unless another process has the log open."""
        with self._writing, self._reading, suppress(sqlite3.Error):
            self._writer.execute("PRAGMA busy_timeout=0")
            try:
                self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                self._writer.execute(f"PRAGMA busy_timeout={int(BUSY_SECONDS * 1000)}")

    @contextmanager
    def _read(self) -> Generator[Cursor]:
        with self._reading, closing(self._reader.cursor()) as cursor:
            within = self._reader.in_transaction  # a nested read shares the snapshot
            try:
                if not within:
                    cursor.execute("BEGIN")
                yield cursor
            except sqlite3.Error as error:
                raise self.store_error(error) from error
            finally:
                if not within:
                    with suppress(sqlite3.Error):
                        cursor.execute("COMMIT")

    def vacuum(self) -> None:
        with self._writing, self._reading:
            try:
                self._writer.execute("VACUUM")
                self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as error:
                raise self.store_error(error) from error

    def empty_log(self) -> None:
        """Move all committed rows into the file itself, so that it can be copied without its log.

        Closing does so too, but silently fails if it cannot.
        """
        self.flush()
        with self._writing, self._reading:
            try:
                if self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                    raise sqlite3.OperationalError("database is locked")
            except sqlite3.Error as error:
                raise self.store_error(error) from error

    def _close(self) -> None:
        if self._committer is not None:
            self._committer.close()
        with self._writing, self._reading:
            self._reader.close()
            # The last connection moves the log into the file by itself, unless another process
            # reads at that moment.
            with suppress(sqlite3.Error):
                self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)")
            self._writer.close()


def _into_wal(connection: sqlite3.Connection) -> None:
    """Set WAL mode, with retries. Unlike other statements, the change of mode does not wait for
    other processes that open the file.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _make_private(path: Path) -> None:
    """Create a file that only its owner can read, regardless of the umask. SQLite gives the files
    beside it the same mode.
    """
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    for suffix in ("", "-wal", "-shm"):
        # a file of another user, to which access was given
        with suppress(FileNotFoundError, PermissionError):
            Path(f"{path}{suffix}").chmod(0o600)
