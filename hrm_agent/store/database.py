"""One SQLite file, one connection, one lock: the ground that checkpoints and journal share.

WAL with `synchronous=NORMAL` survives the death of the process at any moment (`kill -9`) with every commit intact.
After a power failure the newest commits can be missing, never half of one: what was lost is run again on resume.

The connection is shared by threads under a lock instead of opened once per thread, because SQLite has a single
writer anyway and a commit takes some 50 microseconds.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from hrm_agent.errors import StoreError, StoreFullError, StoreVersionError
from hrm_agent.trajectory import SCHEMA_VERSION

__all__ = ["Database"]

_TABLES = """
CREATE TABLE IF NOT EXISTS trajectories (
    id TEXT PRIMARY KEY, run_id TEXT NOT NULL, group_id TEXT NOT NULL, thread_id TEXT NOT NULL UNIQUE,
    status TEXT NOT NULL, record TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS trajectories_run ON trajectories (run_id, group_id);
CREATE TABLE IF NOT EXISTS calls (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, thread_id TEXT NOT NULL, task_id TEXT NOT NULL,
    parent TEXT, record TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS calls_task ON calls (thread_id, task_id);
CREATE TABLE IF NOT EXISTS tokens (
    call_id TEXT PRIMARY KEY REFERENCES calls (id), token_ids BLOB NOT NULL, mask BLOB NOT NULL, logprobs BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS tool_calls (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, thread_id TEXT NOT NULL, arguments_hash TEXT NOT NULL,
    record TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS tool_calls_thread ON tool_calls (thread_id, arguments_hash);
CREATE TABLE IF NOT EXISTS overlays (
    run_id TEXT NOT NULL, step INTEGER NOT NULL, trajectory_id TEXT NOT NULL, record TEXT NOT NULL,
    PRIMARY KEY (run_id, trajectory_id)
);
"""

_FIRST_TABLE = "trajectories"
"""A store has it, even one whose making was cut short."""


class Database:
    """A SQLite file with this project's tables, opened for many threads."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        if not create and not path.exists():
            raise StoreError(f"There is no store at {path}.", "`hrm-agent collect --help` shows how to make one.")
        self.path = path
        self._lock = threading.RLock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                self._look(create)
            self.connection = sqlite3.connect(path, check_same_thread=False, timeout=30.0)
            self._prepare()
        except (sqlite3.Error, OSError) as error:
            raise self._store_error(error) from error

    def _look(self, create: bool) -> None:
        """Refuse a file that is not ours, or is too new, before anything that may write to it is done."""
        # A journal that a crash left behind has to be played back before anybody can read the file.
        mode = "rw" if Path(f"{self.path}-journal").exists() else "ro"
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        with closing(sqlite3.connect(uri, uri=True, timeout=30.0)) as connection:
            version = _version(connection)
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if version > SCHEMA_VERSION:
            raise StoreVersionError(
                f"The store {self.path} has schema version {version}; versions up to {SCHEMA_VERSION} are known here.",
                "Nothing was changed. Update with `pip install --upgrade hrm-agent`, or name another store.",
            )
        if _FIRST_TABLE not in tables and (tables or not create):
            what = "an SQLite file of another program" if tables else "an empty file"
            raise StoreError(f"{self.path} is not a run store: {what}.", "Name another file with --store.")

    def _prepare(self) -> None:
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute("PRAGMA synchronous=NORMAL")
        if _version(self.connection) < SCHEMA_VERSION:
            self.connection.executescript(_TABLES)
            self.connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            self.connection.commit()

    def _store_error(self, error: Exception) -> StoreError:
        text = str(error)
        if "is full" in text or "No space left" in text:
            return StoreFullError(
                f"The disk that holds {self.path} is full.",
                "What was committed is intact: free some space, then `hrm-agent resume` the run.",
            )
        if isinstance(error, sqlite3.DatabaseError) and "not a database" in text:
            return StoreError(f"{self.path} is not a run store: {text}.", "Name another file with --store.")
        return StoreError(
            f"The store {self.path} cannot be used: {text}.", "See that the folder exists and is writable."
        )

    @contextmanager
    def cursor(self, transaction: bool = True) -> Generator[sqlite3.Cursor]:
        """A cursor under the lock. With `transaction`, what it writes is committed at the end or not at all."""
        with self._lock, closing(self.connection.cursor()) as cursor:
            try:
                yield cursor
                if transaction:
                    self.connection.commit()
            except sqlite3.Error as error:
                self._rollback()
                raise self._store_error(error) from error
            except BaseException:
                self._rollback()
                raise

    def _rollback(self) -> None:
        with suppress(sqlite3.Error):  # a full disk: SQLite rolls back by itself when the file is next opened
            self.connection.rollback()

    def close(self) -> None:
        with self._lock:
            self.connection.close()


def _version(connection: sqlite3.Connection) -> int:
    """The schema version; 0 in a file that is new or another program's."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
