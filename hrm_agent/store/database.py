"""What checkpoints and journal stand on: transactions over a SQLite file or a PostgreSQL database.

A write is a function of a cursor. It is committed as a whole before its future is done, or not at all, and it is
idempotent: where the answer to a commit was lost (a server that restarts), the same work is done again. How durable a
commit is depends on the subclass (`SqliteDatabase`, `PostgresDatabase`).

A task's ordinary writes are deferred to the next commit, which is that of the checkpoint that follows them, so
that a step of a graph is one transaction. Where none follows, they are committed on their own some milliseconds later.
A run that dies in between does the task again, with the recorded answers of its calls.

Where a commit has to wait for a disk, one thread commits for all: what arrives during one wait shares the next
(`hrm_agent.store.committer`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from hrm_agent.errors import LeaseLostError, StoreError
from hrm_agent.store.fencing import Fence, leases_of

__all__ = ["Cursor", "Database", "Work", "WriteCursor", "committed", "epoch_of", "placeholders"]

T = TypeVar("T")
_log = logging.getLogger(__name__)
_LATER_SECONDS = 0.005
_JOIN_SECONDS = 5.0
_DRIVERS = ("sqlite3", "psycopg")


class Cursor(Protocol):
    """What both drivers have in common for reading. Placeholders are `?`."""

    def execute(self, query: str, values: Sequence[Any] = ..., /) -> Self: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class WriteCursor(Cursor, Protocol):
    """A cursor inside a transaction that writes."""

    def executemany(self, query: str, values: Iterable[Sequence[Any]], /) -> Any: ...


Work = Callable[[WriteCursor], T]


class Database(ABC):
    """One opened store. Thread-safe."""

    url: str
    """By which it is opened again, without a password."""
    folder: Path
    """Where side files of its runs lie."""
    path: Path | None = None
    """The file, of a database that is one."""
    is_blocking: bool
    """A write waits for a disk or a server: worth leaving the event loop for."""
    level: str
    """What a commit survives: `process` or `power`."""
    epoch: str = ""
    """As it stands in the transaction under way; it changes whenever blobs are collected."""
    transaction: int = 0
    """Number of the transaction under way."""

    def __init__(self) -> None:
        self._later: list[Work[Any]] = []
        self._later_lock = threading.Lock()
        self._committing = threading.RLock()
        self._whole = False
        """All that is written belongs to one transaction."""
        self._given = threading.Event()
        self._closed = threading.Event()
        self._flusher: threading.Thread | None = None
        self._process = os.getpid()
        self.fence = Fence()
        """The leases under which this process writes."""
        self.heads: dict[str, str] = {}
        """Newest checkpoint of threads, as of the transaction under way: forgotten when others may have written."""

    @abstractmethod
    def _submit(self, work: Work[T]) -> Future[T]: ...

    @abstractmethod
    def _close(self) -> None: ...

    @abstractmethod
    def exclusive(self, work: Work[T]) -> T:
        """Do `work` while nobody else writes."""

    @abstractmethod
    def size(self) -> int:
        """Bytes on disk."""

    @abstractmethod
    def vacuum(self) -> None:
        """Give free space back to the file system."""

    @abstractmethod
    def problems(self) -> list[str]:
        """What the database itself finds wrong with its files, in words."""

    @abstractmethod
    def store_error(self, error: Exception) -> StoreError:
        """An error of the driver in words that name this store."""

    def lock_thread(self, cursor: Cursor, thread_id: str) -> None:  # noqa: B027  where one writes at a time, nothing is due
        """Until the transaction ends, no other does work on this thread that asked to be alone on it."""

    def end_writes_of(self, cursor: Cursor, owner: str) -> None:  # noqa: B027  a file's writer cannot be overtaken
        """Give up what another process, whose lease has run out, was writing when it was stopped."""

    @abstractmethod
    def _read(self) -> AbstractContextManager[Cursor]: ...

    @abstractmethod
    def _transact(self, works: Sequence[Work[Any]]) -> list[Any]:
        """Do all of `works` in one transaction, or none; their results in order."""

    @contextmanager
    def whole(self) -> Generator[None]:
        """All that is written inside the block is one transaction; where the block fails, nothing of it is there.

        What this process notes of values that it has stored counts for this block's epoch alone, so that it is
        forgotten where they were not stored after all.
        """
        self.flush()
        with self._committing:  # other threads wait
            self._whole = True
            try:
                with self._one_transaction(), self._dropping_on_failure():
                    epoch = self.epoch = secrets.token_hex(8)
                    self.write(lambda cursor: cursor.execute("UPDATE meta SET value = ? WHERE key = 'epoch'", (epoch,)))
                    self.epoch = epoch
                    yield
                    self.flush()
            finally:
                self._whole = False

    @contextmanager
    def _dropping_on_failure(self) -> Generator[None]:
        """What was put off inside the block goes with it."""
        try:
            yield
        except BaseException:
            with self._later_lock:
                self._later.clear()
            raise

    @abstractmethod
    def _one_transaction(self) -> AbstractContextManager[None]:
        """A transaction that `_transact` does not end."""

    def _at_once(self, work: Work[T]) -> Future[T]:
        """Do `work` in the thread that asks."""
        future: Future[T] = Future()
        try:
            future.set_result(self._commit([work])[0])
        except BaseException as error:
            future.set_exception(error)
        return future

    def submit(self, work: Work[T], thread_id: str | None = None) -> Future[T]:
        """Do `work` in a transaction; the future is done when it is committed. Raises `StoreError` through it.

        `thread_id`: the thread that it writes to; `LeaseLostError` where another process has taken that over.
        """
        self._refuse_unusable()
        done = work if thread_id is None else self.fence.work_on(thread_id, work)
        future = self._at_once(done) if self._whole else self._submit(done)
        if thread_id is not None:
            future.add_done_callback(lambda done: self._note_lost(done.exception()))
        return future

    def _note_lost(self, error: BaseException | None) -> None:
        if isinstance(error, LeaseLostError):
            self.fence.lose(error)

    def write(self, work: Work[T], thread_id: str | None = None) -> T:
        """Do `work` in a transaction and wait for it. It may delete what it likes. `thread_id`: as for `submit`."""

        def forgetting(cursor: WriteCursor) -> T:
            self.heads = {}
            return work(cursor)

        return self.submit(forgetting, thread_id).result()

    def write_once(self, work: Work[None]) -> None:
        """The same for work that cannot be done twice: its mark tells when the answer to its commit was lost."""
        mark = f"done:{secrets.token_hex(8)}"

        def once(cursor: WriteCursor) -> None:
            if cursor.execute("SELECT 1 FROM meta WHERE key = ?", (mark,)).fetchone() is None:
                work(cursor)
                cursor.execute("INSERT INTO meta (key, value) VALUES (?, '')", (mark,))

        self.write(once)
        self.defer(lambda cursor: cursor.execute("DELETE FROM meta WHERE key = ?", (mark,)))

    def read(self) -> AbstractContextManager[Cursor]:
        """A cursor that sees one moment: everything that was handed in before."""
        self._refuse_unusable()
        self.flush()
        return self._read()

    def read_once(self, reading: Callable[[Cursor], T]) -> T:
        """What `reading` finds in one moment. It is done again where the server was lost in the middle."""
        with self.read() as cursor:
            return reading(cursor)

    def rows(self, cursor: Cursor, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Rows that a cursor of `read` finds, where another store is at work as well: errors are told of this one."""
        try:
            return cursor.execute(query, values).fetchall()
        except Exception as error:
            raise (self.store_error(error) if _is_of_driver(error) else error) from error

    def defer(self, work: Work[Any], thread_id: str | None = None) -> None:
        """Do `work` with the next commit, at the latest some milliseconds from now. `thread_id`: as for `submit`."""
        self._refuse_unusable()
        with self._later_lock:
            self._later.append(work if thread_id is None else self.fence.work_on(thread_id, work))
            if self._flusher is None:
                self._flusher = threading.Thread(target=self._flush_on_time, name="store-flush", daemon=True)
                self._flusher.start()
        self._given.set()

    def flush(self) -> None:
        """Commit what was to be done later."""
        if self._later:
            self.write(lambda _: None)

    def _commit(self, works: Sequence[Work[Any]]) -> list[Any]:
        """What was to be done later, and `works`. If the commit fails, what was to be done later still is.

        Except what fails by itself, and would each time (a damaged row that it has to add to): that is given up, and
        the commit under way is told why it failed, or the log. Of a thread that another process has taken over, only
        its own run is told.

        One at a time: no checkpoint may be committed before the writes that led to it, which another thread has taken
        up. They stay in the list until they are committed, so that whoever reads meanwhile waits for them.
        """
        with self._committing:
            while True:
                with self._later_lock:
                    before = list(self._later)
                try:
                    results = self._transact([*map(_GuardedWork, before), *works])[len(before) :]
                except _LaterFailed as error:
                    with self._later_lock:
                        self._later.remove(error.work)
                    if isinstance(error.reason, LeaseLostError):
                        self._note_lost(error.reason)
                    elif len(works) == 1 and works[0] is not _for_nobody:
                        raise error.reason from error
                    else:  # nobody waits for it, or several do, none of whom it concerns more than another
                        _log.error("The store %s gave up a write: %s", self.url, error.reason, exc_info=error.reason)
                    continue
                with self._later_lock:
                    del self._later[: len(before)]
                return results

    def _flush_on_time(self) -> None:
        while not self._closed.is_set():
            self._given.wait()
            self._given.clear()
            if not self._closed.wait(_LATER_SECONDS):
                with suppress(StoreError):  # a database that is away tells whoever writes next itself
                    self.submit(_for_nobody).result()

    def close(self) -> None:
        """Commit what is left. In a forked process nothing: the connections are its parent's."""
        if self._process != os.getpid():
            return
        try:
            with suppress(StoreError):  # a full disk: what is lost is done again on resume
                self.flush()
        finally:
            self._closed.set()
            self._given.set()
            if self._flusher is not None:
                self._flusher.join(timeout=_JOIN_SECONDS)
            self._close()

    def _refuse_unusable(self) -> None:
        """Connections and locks do not survive `os.fork`, and the threads that commit are not there."""
        if self._process != os.getpid():
            raise StoreError(
                f"The store {self.url} was opened by process {self._process}, and this is a fork of it.",
                "Call open_store in each process.",
            )
        if self._closed.is_set():
            raise StoreError(f"The store {self.url} is closed.", "Open it again: open_store.")


def _for_nobody(_: WriteCursor) -> None:
    """Commits what was to be done later, on time."""


class _LaterFailed(Exception):
    """Work that was to be done later, and cannot be."""

    def __init__(self, work: Work[Any], reason: Exception) -> None:
        super().__init__(str(reason))
        self.work, self.reason = work, reason


class _GuardedWork:
    """The same work, whose own failure can be told from the database's."""

    def __init__(self, work: Work[Any]) -> None:
        self._work = work
        self.leases = leases_of([work])

    def __call__(self, cursor: WriteCursor) -> Any:
        try:
            return self._work(cursor)
        except Exception as error:
            if _is_of_driver(error):
                raise
            raise _LaterFailed(self._work, error) from error


def _is_of_driver(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in _DRIVERS


async def committed(future: Future[T]) -> T:
    """The result of `future`, without a round through the event loop where it is done already."""
    return future.result() if future.done() else await asyncio.wrap_future(future)


def placeholders(count: int) -> str:
    """`?, ?, ?`"""
    return ", ".join("?" * count)


def epoch_of(cursor: Cursor) -> str:
    """The epoch of a store; empty in one that is being made."""
    row = cursor.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
    return str(row[0]) if row else ""
