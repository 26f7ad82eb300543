"""Base of checkpoints and journal: transactions over a SQLite file or a PostgreSQL database.

A write is a function of a cursor. It is committed as a whole before its future is done, or not at
all. It is idempotent: if the answer to a commit was lost (a server restart), the same work is done
again. The durability of a commit depends on the subclass (`SqliteDatabase`, `PostgresDatabase`).

A task's ordinary writes are deferred to the next commit, which is that of the following checkpoint,
so a step of a graph is one transaction. If no checkpoint follows, they are committed on their own
some milliseconds later. A run that dies in between repeats the task, with the recorded answers of
its calls.

If a commit has to wait for a disk, one thread commits for all that arrive meanwhile
(`hrm_agent.store.database.committer`).
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from hrm_agent.basics.guarded_loop import LoopGuard
from hrm_agent.errors import LeaseLostError, StoreError
from hrm_agent.store.database.committer import (
    DeferredFailed,
    DeferredWork,
    committed,
    is_late,
    is_of_driver,
    is_refused,
)
from hrm_agent.store.database.cursors import Cursor, Work, WriteCursor
from hrm_agent.store.database.fencing import Fence, HeldThread, HeldThreads

__all__ = ["Database", "committed"]

T = TypeVar("T")
_log = logging.getLogger(__name__)
_LATER_SECONDS = 0.005
"""Longest delay in seconds of a deferred write. It then gets a commit of its own."""


class Database(ABC):
    """Opened store. Thread-safe."""

    url: str
    """URL that opens the store again, without a password."""
    folder: Path
    """Folder for side files of its runs."""
    path: Path | None = None
    """File of the database, if it is one."""
    is_blocking: bool
    """True if a write waits for a disk or a server. Writing should then leave the event loop."""
    level: str
    """Failure that a commit survives: `process` or `power`."""
    server_clock: str = ""
    """SQL for Unix time in seconds by a clock that all writers share (empty if they share a
    machine).
    """
    epoch: str = ""
    """Epoch in the current transaction. It changes whenever blobs are collected."""
    transaction: int = 0
    """Number of the current transaction."""
    joined_seconds: float = 0.05
    """Longest delay in seconds of a deferred write of a run whose steps go with the next commit.
    The run is never further ahead of its record.
    """

    def __init__(self) -> None:
        self._later: list[DeferredWork] = []
        self._later_lock = threading.Lock()
        self._due = 0.0
        """Latest time for committing the deferred writes, on the monotonic clock."""
        self._sleeps = True
        """True while the flushing thread waits for the next deferred write."""
        self._committing = threading.RLock()
        self._whole = False
        """True while all writes belong to one transaction."""
        self._given = threading.Event()
        self._closed = threading.Event()
        self._flusher: threading.Thread | None = None
        self._process = os.getpid()
        self.fence = Fence()
        """Leases under which this process writes."""
        self.held = HeldThreads(self.fence)
        """Knowledge about the threads that this process holds."""
        self.heads: dict[str, str] = {}
        """Newest checkpoints by thread in the current transaction. They are forgotten if others may
        have written.
        """
        self.likely_heads: dict[str, str] = {}
        """Newest checkpoints by thread as of earlier transactions, for a database with costly
        queries. Others may have written since.
        """

    @abstractmethod
    def _submit(self, work: Work[T], *, waits: bool) -> Future[T]: ...

    @abstractmethod
    def _close(self) -> None: ...

    @abstractmethod
    def exclusive(self, work: Work[T]) -> T:
        """Do `work` in a transaction while nothing else writes. In a file, deleted rows are
        overwritten.
        """

    @abstractmethod
    def size(self) -> int:
        """Bytes on disk."""

    @abstractmethod
    def vacuum(self) -> None:
        """Return free space to the file system."""

    @abstractmethod
    def problems(self) -> list[str]:
        """Messages about damage that the database finds in its own files."""

    @abstractmethod
    def store_error(self, error: Exception) -> StoreError:
        """Convert an error of the driver to a `StoreError` that names this store."""

    def lock_thread(self, cursor: Cursor, thread_id: str) -> None:  # noqa: B027  where one writes at a time, nothing is due
        """Lock a thread against other work that locks it, until the transaction ends. A database
        with one writer at a time needs no lock.
        """

    def end_writes_of(self, cursor: Cursor, owner: str) -> None:  # noqa: B027  a file's writer cannot be overtaken
        """Abort the unfinished writes of a stopped process whose lease has expired."""

    @abstractmethod
    def _read(self) -> AbstractContextManager[Cursor]: ...

    @abstractmethod
    def _transact(self, works: Sequence[Work[Any]]) -> list[Any]:
        """Do all of `works` in one transaction, or none. Returns their results in order."""

    @contextmanager
    def whole(self) -> Generator[None]:
        """Write everything inside the block in one transaction. If the block fails, nothing is
        written.

        Notes of stored values are valid for this block's epoch only. So they are forgotten if the
        values were not stored after all.
        """
        self.flush()
        with self._committing:  # other threads wait
            self._whole = True
            try:
                with self._one_transaction(), self._dropping_on_failure():
                    epoch = self.epoch = secrets.token_hex(8)
                    self.write(
                        lambda cursor: cursor.execute(
                            "UPDATE meta SET value = ? WHERE key = 'epoch'", (epoch,)
                        )
                    )
                    self.epoch = epoch
                    yield
                    self.flush()
            finally:
                self._whole = False
                self.held.forget()

    @contextmanager
    def _dropping_on_failure(self) -> Generator[None]:
        """Drop the writes deferred inside the block if it fails."""
        try:
            yield
        except BaseException:
            with self._later_lock:
                self._later.clear()
            raise

    @abstractmethod
    def _one_transaction(self) -> AbstractContextManager[None]:
        """Open a transaction that `_transact` does not end."""

    def _at_once(self, work: Work[T]) -> Future[T]:
        """Do `work` in the calling thread."""
        future = Future[T]()
        try:
            future.set_result(self._commit([work])[0])
        except BaseException as error:
            future.set_exception(error)
        return future

    def submit(
        self, work: Work[T], thread_id: str | None = None, *, waits: bool = False
    ) -> Future[T]:
        """Do `work` in a transaction. The future is done when the work is committed, or has a
        `StoreError`.

        `thread_id`: thread that the work writes to. The work fails with `LeaseLostError` if another
        process has taken the thread over. `waits`: the caller will wait, so the commit may be made
        in its thread.
        """
        self._refuse_unusable()
        done = work if thread_id is None else self.fence.work_on(thread_id, work)
        future = self._at_once(done) if self._whole else self._submit(done, waits=waits)
        if thread_id is not None:
            future.add_done_callback(lambda done: self._note_lost(done.exception()))
        return future

    def _note_lost(self, error: BaseException | None) -> None:
        if isinstance(error, LeaseLostError):
            self.fence.lose(error)

    def add(self, work: Work[T], thread_id: str | None = None) -> T:
        """Do `work` in a transaction and wait for it. It must not delete anything.

        `thread_id`: thread that the work writes to (see `submit`).
        """
        return self.submit(work, thread_id, waits=True).result()

    def write(self, work: Work[T], thread_id: str | None = None) -> T:
        """Do `work` in a transaction and wait for it. It may delete.

        `thread_id`: thread that the work writes to (see `submit`).
        """

        def forgetting(cursor: WriteCursor) -> T:
            self.heads = {}
            return work(cursor)

        try:
            return self.submit(forgetting, thread_id, waits=True).result()
        finally:
            self.held.forget()

    def write_once(self, work: Work[None]) -> None:
        """Do work that must not be done twice in a transaction, and wait for it. If the answer to a
        commit is lost, a mark in the database shows whether the work was committed.
        """
        mark = f"done:{secrets.token_hex(8)}"

        def once(cursor: WriteCursor) -> None:
            if cursor.execute("SELECT 1 FROM meta WHERE key = ?", (mark,)).fetchone() is None:
                work(cursor)
                cursor.execute("INSERT INTO meta (key, value) VALUES (?, '')", (mark,))

        self.write(once)
        self.defer(lambda cursor: cursor.execute("DELETE FROM meta WHERE key = ?", (mark,)))

    def read(self) -> AbstractContextManager[Cursor]:
        """Cursor on a snapshot with everything that was handed in before."""
        self._refuse_unusable()
        self.flush()
        return self._read()

    def peek(self) -> AbstractContextManager[Cursor]:
        """Cursor on the committed state. Deferred writes may be missing."""
        self._refuse_unusable()
        return self._read()

    @contextmanager
    def settled(self) -> Generator[Cursor]:
        """Cursor that sees all writes of this process. No transaction of it runs during the
        block.
        """
        self.flush()
        with self._committing, self.peek() as cursor:
            yield cursor

    def joins(self, held: HeldThread | None) -> TypeGuard[HeldThread]:
        """True if a thread's writes go with the next commit. While a commit fails or is late, each
        write waits for a commit of its own.
        """
        return held is not None and held.joins and not is_late(self._later, self.joined_seconds)

    def read_once(self, reading: Callable[[Cursor], T]) -> T:
        """Result of `reading` on one snapshot. It is called again if the server was lost
        meanwhile.
        """
        with self.read() as cursor:
            return reading(cursor)

    def rows(self, cursor: Cursor, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Rows of a query by a cursor of `read`, if another store is used at the same time. Errors
        are reported for this store.
        """
        try:
            return cursor.execute(query, values).fetchall()
        except Exception as error:
            raise (self.store_error(error) if is_of_driver(error) else error) from error

    def defer(
        self,
        work: Work[Any],
        thread_id: str | None = None,
        on_done: Callable[[Exception | None], object] | None = None,
        seconds: float | None = None,
    ) -> None:
        """Do `work` with the next commit, at most `seconds` (default: 5 ms) from now.

        `thread_id`: thread that the work writes to (see `submit`). `on_done`: see `DeferredWork`.
        Without `on_done`, a failure is raised by the next commit, or logged.
        """
        self._refuse_unusable()
        deferred = DeferredWork(
            work if thread_id is None else self.fence.work_on(thread_id, work), on_done
        )
        with self._later_lock:
            due = time.monotonic() + (_LATER_SECONDS if seconds is None else seconds)
            self._due = min(self._due, due) if self._later else due
            self._later.append(deferred)
            if self._flusher is None:
                self._flusher = threading.Thread(
                    target=self._flush_on_time, name="store-flush", daemon=True
                )
                self._flusher.start()
            if self._sleeps:
                self._given.set()

    def flush(self) -> None:
        """Commit the deferred writes."""
        if self._later:
            self.add(_for_nobody)

    def _commit(self, works: Sequence[Work[Any]]) -> list[Any]:
        """Commit the deferred writes, and `works`. If the commit fails, deferred writes stay
        deferred.

        The exception is a deferred write that fails by itself, and would fail each time (a damaged
        row that it has to add to). It is given up, and its error is raised by the current commit,
        or logged. If another process has taken its thread over, only that thread's run gets the
        error.

        Commits run one at a time: no checkpoint may be committed before the writes that led to it,
        which another thread is committing. Deferred writes stay in the list until they are
        committed, so readers wait for them meanwhile.
        """
        with self._committing:
            while True:
                with self._later_lock:
                    before = list(self._later)
                if not before and all(work is _for_nobody for work in works):
                    return [None] * len(works)  # another commit has included them
                try:
                    results = self._transact([*before, *works])[len(before) :]
                except DeferredFailed as error:
                    self._give_up(error, works)
                    continue
                except BaseException as error:
                    self.held.forget()
                    if before and is_refused(error.__cause__):
                        self._commit_alone(before)
                        continue
                    raise
                if before:
                    with self._later_lock:
                        del self._later[: len(before)]
                        # writes that arrived meanwhile get the whole delay
                        self._due = time.monotonic() + _LATER_SECONDS
                    for work in before:
                        work.done()
                return results

    def _commit_alone(self, works: Sequence[DeferredWork]) -> None:
        """Commit deferred writes one by one if a row is refused, since a pipeline does not report
        which row.
        """
        for work in works:
            try:
                self._transact([work])
            except DeferredFailed as error:
                self._give_up(error, ())
            except StoreError as error:
                if not is_refused(error.__cause__):
                    raise
                self._give_up(DeferredFailed(work, error), ())
            else:
                with self._later_lock:
                    self._later.remove(work)
                work.done()

    def _give_up(self, error: DeferredFailed, works: Sequence[Work[Any]]) -> None:
        """Remove a failed deferred write from the commit of `works`, and report it."""
        self.held.forget()
        with self._later_lock:
            self._later.remove(error.work)
        error.work.done(error.reason)
        self._note_lost(error.reason)
        if (
            isinstance(error.reason, LeaseLostError)
            or error.work.tells
            or self.fence.has_stopped(error.work.leases)
        ):
            return
        if len(works) == 1 and works[0] is not _for_nobody:
            raise error.reason from error
        # No caller waits for the write, or several wait for the commit and none is more concerned
        # than the others.
        _log.error(
            "The store %s gave up a write: %s", self.url, error.reason, exc_info=error.reason
        )

    def _flush_on_time(self) -> None:
        """Commit deferred writes when they are due. Under load, commits include them earlier, so
        nothing is left to do.
        """
        guard = LoopGuard("store-flush")
        while not self._closed.is_set():
            self._given.wait()
            with guard, suppress(StoreError):  # the next writer that waits gets the error
                while self._has_more() and not self._closed.wait(
                    min(self._seconds_left(), _LATER_SECONDS)
                ):
                    # If time is left, the writes are not due yet, or were committed and later ones
                    # have come.
                    if self._seconds_left() <= 0:
                        self._flush_or_sleep()

    def _flush_or_sleep(self) -> None:
        try:
            self.submit(_for_nobody, waits=True).result()
        except BaseException:
            with self._later_lock:
                self._sleeps = True
                self._given.clear()
            raise

    def _seconds_left(self) -> float:
        return max(self._due - time.monotonic(), 0.0)

    def _has_more(self) -> bool:
        """True if there are deferred writes. Otherwise the next one wakes the thread."""
        with self._later_lock:
            self._sleeps = not self._later
            if self._sleeps:
                self._given.clear()
            return not self._sleeps

    def close(self) -> None:
        """Commit the rest and close. A forked process does nothing, as the connections are its
        parent's.
        """
        if self._process != os.getpid():
            return
        try:
            with suppress(StoreError):  # a full disk: lost writes are done again on resume
                self.flush()
        finally:
            self._closed.set()
            self._given.set()
            if self._flusher is not None:
                self._flusher.join(timeout=5)
            self._close()

    def _refuse_unusable(self) -> None:
        """Raise `StoreError` if the store is closed, or in a forked process. Connections, locks and
        the committing threads do not survive `os.fork`.
        """
        if self._process != os.getpid():
            raise StoreError(
                f"The store {self.url} was opened by process {self._process}, and this is a fork"
                " of it.",
                "Call open_store in each process.",
            )
        if self._closed.is_set():
            raise StoreError(f"The store {self.url} is closed.", "Open it again with open_store.")


def _for_nobody(_: WriteCursor) -> None:
    """Work that does nothing, to commit deferred writes on time."""
