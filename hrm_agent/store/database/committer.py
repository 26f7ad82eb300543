"""Group commit: while one commit waits for the disk, arriving writes are collected for the next
one.

Deferred writes go with the next commit of any caller. An event loop waits for the future of a write
by `committed`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from hrm_agent.basics.guarded_loop import LoopGuard
from hrm_agent.errors import StoreError
from hrm_agent.store.database.cursors import Work
from hrm_agent.store.database.fencing import HeldLease

if TYPE_CHECKING:
    from hrm_agent.store.database.cursors import Work, WriteCursor

__all__ = [
    "Committer",
    "DeferredFailed",
    "DeferredWork",
    "committed",
    "finished",
    "is_late",
    "is_of_driver",
    "is_refused",
]

_log = logging.getLogger(__name__)
_NO_LEASES = frozenset[HeldLease]()
_DRIVERS = ("sqlite3", "psycopg")
_REFUSED = {"IntegrityError", "DataError"}
"""Error classes of both drivers for an invalid row."""


class DeferredFailed(Exception):
    """Error of deferred work that cannot be committed."""

    def __init__(self, work: DeferredWork, reason: Exception) -> None:
        super().__init__(str(reason))
        self.work = work
        self.reason = reason


class DeferredWork:
    """Deferred work that separates its own failure from the database's.

    `on_done` is called in any thread when it is committed (with None), or given up (with the
    reason).
    """

    def __init__(
        self, work: Work[Any], on_done: Callable[[Exception | None], object] | None = None
    ) -> None:
        self._work = work
        self._on_done = on_done
        self.leases: frozenset[HeldLease] = getattr(work, "leases", _NO_LEASES)
        self.since = time.monotonic()

    @property
    def tells(self) -> bool:
        """True if a caller is notified of the outcome."""
        return self._on_done is not None

    def done(self, error: Exception | None = None) -> None:
        """Report that the work is committed, or why it never will be. An error of `on_done` is only
        logged.
        """
        if self._on_done is not None:
            try:
                self._on_done(error)
            except Exception:
                _log.exception("The callback of a write has failed.")

    def __call__(self, cursor: WriteCursor) -> Any:
        try:
            return self._work(cursor)
        except Exception as error:
            if is_of_driver(error):
                raise
            raise DeferredFailed(self, error) from error


def is_late(works: Sequence[DeferredWork], seconds: float) -> bool:
    """True if the oldest work has waited for more than `seconds`: the disk is slow, another process
    writes, or no thread had time.

    `works` may change meanwhile.
    """
    oldest = next(iter(works), None)
    return oldest is not None and time.monotonic() - oldest.since > seconds


def is_of_driver(error: Exception) -> bool:
    """True for an error of the database driver, False for one of the work itself."""
    return type(error).__module__.partition(".")[0] in _DRIVERS


def is_refused(error: BaseException | None) -> bool:
    """True if the database refuses a row itself, and would refuse it each time."""
    return (
        isinstance(error, Exception)
        and is_of_driver(error)
        and not _REFUSED.isdisjoint([each.__name__ for each in type(error).__mro__])
    )


T = TypeVar("T")


def finished(value: T) -> Future[T]:
    """Future that is done, with its result."""
    future = Future[T]()
    future.set_result(value)
    return future


async def committed(future: Future[T]) -> T:
    """Result of `future`, without a round through the event loop if it is done already."""
    return future.result() if future.done() else await asyncio.wrap_future(future)


_IN_ONE_COMMIT = 512


@dataclass(frozen=True, slots=True)
class _PendingWrite:
    work: Work[Any]
    future: Future[Any]
    """Future of the work's result, which is set when the work is committed."""


class Committer:
    """Thread that commits for many callers: all waiting jobs go into one transaction.

    A caller that will wait for its job commits in its own thread if no commit is running, together
    with earlier jobs. Handing over to another thread and back takes as long as the rest of a small
    commit. The main thread never commits itself, since an interrupt (Ctrl-C) would be raised in the
    middle of the commit.
    """

    def __init__(self, commit: Callable[[Sequence[Work[Any]]], list[Any]]) -> None:
        self._commit = commit
        self._jobs: deque[_PendingWrite] = deque()
        self._changed = threading.Condition()
        """Lock of `_jobs`, `_busy` and `_closed`."""
        self._busy = False
        """True while any thread is committing."""
        self._closed = False
        self._guard = LoopGuard("store-commits")
        self._thread = threading.Thread(target=self._run, name="store-commits", daemon=True)
        self._thread.start()

    def submit(self, work: Work[T], *, waits: bool = False) -> Future[T]:
        """Queue a job for commit. Raises `StoreError` after `close`. `waits`: the caller will wait
        for the job.
        """
        future: Future[T] = Future()
        # The future cannot be cancelled: the job is committed even if the task of its caller is
        # cancelled.
        future.set_running_or_notify_cancel()
        with self._changed:
            if self._closed:
                raise StoreError("The store is closed.", "Open it again with open_store.")
            self._jobs.append(_PendingWrite(work, future))
            if self._busy or not waits or threading.current_thread() is threading.main_thread():
                self._changed.notify()
                return future
            jobs = self._take()
        self._finish_taken(jobs)
        return future

    def close(self) -> None:
        """Commit the queued jobs, and accept no more."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _take(self) -> list[_PendingWrite]:
        self._busy = True
        return [self._jobs.popleft() for _ in range(min(len(self._jobs), _IN_ONE_COMMIT))]

    def _finish_taken(self, jobs: Sequence[_PendingWrite]) -> None:
        try:
            self._finish(jobs)
        # on any error, no caller may wait forever, and the thread must go on
        except Exception as error:
            self._guard.caught(error)
            for job in jobs:
                if not job.future.done():
                    job.future.set_exception(error)
        finally:
            with self._changed:
                self._busy = False
                if self._jobs or self._closed:
                    self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._guard:
                with self._changed:
                    while self._busy or not self._jobs:
                        if self._closed and not self._busy:
                            return
                        self._changed.wait()
                    jobs = self._take()
                self._finish_taken(jobs)

    def _finish(self, jobs: Sequence[_PendingWrite]) -> None:
        """Commit jobs together. If that fails, each is tried alone, so that one job's failure is
        not another's.
        """
        try:
            results = self._commit([job.work for job in jobs])
        except BaseException as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
                return
            for job in jobs:
                self._finish([job])
            return
        for job, result in zip(jobs, results, strict=True):
            job.future.set_result(result)
