"""What checkpoints and journal stand on: transactions over a SQLite file or a PostgreSQL database.

A write is a function of a cursor. It is committed as a whole before its future is done, or not at
all, and it is idempotent: where the answer to a commit was lost (a server that restarts), the same
work is done again. How durable a commit is depends on the subclass (`SqliteDatabase`,
`PostgresDatabase`).

A task's ordinary writes are deferred to the next commit, which is that of the checkpoint that
follows them, so that a step of a graph is one transaction. Where none follows, they are committed
on their own some milliseconds later. A run that dies in between does the task again, with the
recorded answers of its calls.

Where a commit has to wait for a disk, one thread commits for all that comes meanwhile
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
from hrm_agent.store.database.cursors import Cursor, Work, WriteCursor
from hrm_agent.store.database.deferred import (
    DeferredFailed,
    DeferredWork,
    FinishedFuture,
    committed,
    is_late,
    is_of_driver,
    is_refused,
)
from hrm_agent.store.database.fencing import Fence
from hrm_agent.store.database.held_threads import HeldThread, HeldThreads

__all__ = ["Database", "committed"]

T = TypeVar("T")
_log = logging.getLogger(__name__)
_LATER_SECONDS = 0.005
"""After how long what is to go with the next commit gets one of its own."""


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
    server_clock: str = ""
    """SQL for Unix time in seconds by a clock that all writers share; empty if they share a
    machine.
    """
    epoch: str = ""
    """As it stands in the transaction under way; it changes whenever blobs are collected."""
    transaction: int = 0
    """Number of the transaction under way."""
    joined_seconds: float = 0.05
    """The same as `_LATER_SECONDS` for a run whose steps join: it is never further ahead of its
    record.
    """

    def __init__(self) -> None:
        self._later: list[DeferredWork] = []
        self._later_lock = threading.Lock()
        self._due = 0.0
        """When the oldest of them is to be committed at the latest, by the monotonic clock."""
        self._sleeps = True
        """The thread that sees to that waits to be told of the next."""
        self._committing = threading.RLock()
        self._whole = False
        """All that is written belongs to one transaction."""
        self._given = threading.Event()
        self._closed = threading.Event()
        self._flusher: threading.Thread | None = None
        self._process = os.getpid()
        self.fence = Fence()
        """The leases under which this process writes."""
        self.held = HeldThreads(self.fence)
        """What is known of the threads that this process holds."""
        self.heads: dict[str, str] = {}
        """Newest checkpoint of threads, as of the transaction under way: forgotten when others may
        have written.
        """
        self.likely_heads: dict[str, str] = {}
        """The same as of earlier transactions, where asking is dear:
        others may have written since.
        """

    @abstractmethod
    def _submit(self, work: Work[T], *, waits: bool) -> Future[T]: ...

    @abstractmethod
    def _close(self) -> None: ...

    @abstractmethod
    def exclusive(self, work: Work[T]) -> T:
        """Do `work` in a transaction while nobody else writes. Deleted rows are overwritten in a
        file.
        """

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
        """Until the transaction ends, no other does work on this thread that asked to be alone on
        it.
        """

    def end_writes_of(self, cursor: Cursor, owner: str) -> None:  # noqa: B027  a file's writer cannot be overtaken
        """Give up what another process, whose lease has run out,
        was writing when it was stopped.
        """

    @abstractmethod
    def _read(self) -> AbstractContextManager[Cursor]: ...

    @abstractmethod
    def _transact(self, works: Sequence[Work[Any]]) -> list[Any]:
        """Do all of `works` in one transaction, or none; their results in order."""

    @contextmanager
    def whole(self) -> Generator[None]:
        """All that is written inside the block is one transaction; where the block fails, nothing
        of it is there.

        What this process notes of values that it has stored counts for this block's epoch alone, so
        that it is forgotten where they were not stored after all.
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
        try:
            return FinishedFuture(self._commit([work])[0])
        except BaseException as error:
            return FinishedFuture(None, error)

    def submit(
        self, work: Work[T], thread_id: str | None = None, *, waits: bool = False
    ) -> Future[T]:
        """Do `work` in a transaction; the future is done when it is committed. Raises `StoreError`
        through it.

        `thread_id`: the thread that it writes to; `LeaseLostError` where another process has taken
        that over. `waits`: the caller will, so that the commit may be made in its thread.
        """
        self._refuse_unusable()
        done = work if thread_id is None else self.fence.work_on(thread_id, work)
        future = self._at_once(done) if self._whole else self._submit(done, waits=waits)
        if thread_id is not None:
            future.add_done_callback(self._look_whether_lost)
        return future

    def _look_whether_lost(self, done: Future[Any]) -> None:
        self._note_lost(done.exception())

    def _note_lost(self, error: BaseException | None) -> None:
        if isinstance(error, LeaseLostError):
            self.fence.lose(error)

    def add(self, work: Work[T], thread_id: str | None = None) -> T:
        """Do `work` in a transaction and wait for it. It deletes nothing. `thread_id`: as for
        `submit`.
        """
        return self.submit(work, thread_id, waits=True).result()

    def write(self, work: Work[T], thread_id: str | None = None) -> T:
        """Do `work` in a transaction and wait for it. It may delete what it likes. `thread_id`: as
        for `submit`.
        """

        def forgetting(cursor: WriteCursor) -> T:
            self.heads = {}
            return work(cursor)

        try:
            return self.submit(forgetting, thread_id, waits=True).result()
        finally:
            self.held.forget()

    def write_once(self, work: Work[None]) -> None:
        """The same for work that cannot be done twice: its mark tells when the answer to its commit
        was lost.
        """
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

    def peek(self) -> AbstractContextManager[Cursor]:
        """A cursor that sees what was committed; what is to be committed later may be missing."""
        self._refuse_unusable()
        return self._read()

    @contextmanager
    def settled(self) -> Generator[Cursor]:
        """A cursor that sees all that this process has written; no transaction of it is under way
        in the block.
        """
        self.flush()
        with self._committing, self.peek() as cursor:
            yield cursor

    def joins(self, held: HeldThread | None) -> TypeGuard[HeldThread]:
        """Whether what a thread writes goes with the next commit. While one fails or is late, it
        waits for its own.
        """
        return held is not None and held.joins and not is_late(self._later, self.joined_seconds)

    def read_once(self, reading: Callable[[Cursor], T]) -> T:
        """What `reading` finds in one moment. It is done again where the server was lost in the
        middle.
        """
        with self.read() as cursor:
            return reading(cursor)

    def rows(self, cursor: Cursor, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Rows that a cursor of `read` finds, where another store is at work as well: errors are
        told of this one.
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
        """Do `work` with the next commit, at the latest `seconds` (5 ms) from now. `thread_id`: as
        for `submit`.

        `on_done`: as for `DeferredWork`; without it a failure is told to whoever commits, or the
        log.
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
        """Commit what was to be done later."""
        if self._later:
            self.add(_for_nobody)

    def _commit(self, works: Sequence[Work[Any]]) -> list[Any]:
        """What was to be done later, and `works`. If the commit fails, what was to be done later
        still is.

        Except what fails by itself, and would each time (a damaged row that it has to add to): that
        is given up, and the commit under way is told why it failed, or the log. Of a thread that
        another process has taken over, only its own run is told.

        One at a time: no checkpoint may be committed before the writes that led to it, which
        another thread has taken up. They stay in the list until they are committed, so that whoever
        reads meanwhile waits for them.
        """
        with self._committing:
            while True:
                with self._later_lock:
                    before = list(self._later)
                if not before and all(work is _for_nobody for work in works):
                    return [None] * len(works)  # another commit has taken it along
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
                        # of those that came meanwhile
                        self._due = time.monotonic() + _LATER_SECONDS
                    for work in before:
                        work.done()
                return results

    def _commit_alone(self, works: Sequence[DeferredWork]) -> None:
        """One by one, where a row of one of them is refused: which one, a pipeline does not say."""
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
        """Leave out of the commit of `works` what was to go with it and cannot, and say so."""
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
        # Nobody waits for it, or several do, none of whom it concerns more than another.
        _log.error(
            "The store %s gave up a write: %s", self.url, error.reason, exc_info=error.reason
        )

    def _flush_on_time(self) -> None:
        """What a commit has taken along before it was due is not waited for: under load nothing is
        left to be done.
        """
        guard = LoopGuard("store-flush")
        while not self._closed.is_set():
            self._given.wait()
            with guard, suppress(StoreError):  # of that, whoever writes next and waits is told
                while self._has_more() and not self._closed.wait(
                    min(self._seconds_left(), _LATER_SECONDS)
                ):
                    # else not yet, or others have come in the place of those waited for
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
        """If not, the next that is put off says so."""
        with self._later_lock:
            self._sleeps = not self._later
            if self._sleeps:
                self._given.clear()
            return not self._sleeps

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
                self._flusher.join(timeout=5)
            self._close()

    def _refuse_unusable(self) -> None:
        """Connections and locks do not survive `os.fork`, and the threads that commit are not
        there.
        """
        if self._process != os.getpid():
            raise StoreError(
                f"The store {self.url} was opened by process {self._process}, and this is a fork"
                " of it.",
                "Call open_store in each process.",
            )
        if self._closed.is_set():
            raise StoreError(f"The store {self.url} is closed.", "Open it again: open_store.")


def _for_nobody(_: WriteCursor) -> None:
    """Commits what was to be done later, on time."""
