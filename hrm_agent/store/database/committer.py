"""Group commit: while one commit waits for the disk, arriving writes are collected for the next
one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from hrm_agent.basics.guarded_loop import LoopGuard
from hrm_agent.errors import StoreError
from hrm_agent.store.database.cursors import Work

__all__ = ["Committer"]

T = TypeVar("T")
_IN_ONE_COMMIT = 512


@dataclass(frozen=True, slots=True)
class _PendingWrite:
    work: Work[Any]
    future: Future[Any]
    """Future that is done when the work is committed. Then it has its result."""


class Committer:
    """Thread that commits for many callers: all waiting jobs go into one transaction.

    A caller that will wait for its job commits in its own thread if no commit is running, together
    with earlier jobs. Handing over to another thread and back takes as long as the rest of a small
    commit. The main thread never does so, as an interrupt (Ctrl-C) would be raised in the middle.
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
        # a waiting caller may be cancelled, but its job is committed
        future.set_running_or_notify_cancel()
        with self._changed:
            if self._closed:
                raise StoreError("The store is closed.", "Open it again: open_store.")
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
