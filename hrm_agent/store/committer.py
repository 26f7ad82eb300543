"""One thread that commits for many, where a commit waits for a disk: what arrives during one wait shares the next."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from hrm_agent.errors import StoreError
from hrm_agent.store.cursors import Work

__all__ = ["Committer"]

T = TypeVar("T")
_IN_ONE_COMMIT = 512


@dataclass(frozen=True, slots=True)
class _PendingWrite:
    work: Work[Any]
    future: Future[Any]
    """Done when the work is committed; then it has its result."""


class Committer:
    """One thread that commits for many: all jobs that are waiting go into one transaction."""

    def __init__(self, commit: Callable[[Sequence[Work[Any]]], list[Any]]) -> None:
        self._commit = commit
        self._jobs: queue.SimpleQueue[_PendingWrite | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="store-commits", daemon=True)
        self._thread.start()

    def submit(self, work: Work[T]) -> Future[T]:
        """Raises `StoreError` after `close`: nothing would be committed any more."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # whoever waits may be cancelled; what was handed in is committed
        with self._closing:
            if self._closed:
                raise StoreError("The store is closed.", "Open it again: open_store.")
            self._jobs.put(_PendingWrite(work, future))
        return future

    def close(self) -> None:
        """Commit what was handed in, and take nothing more."""
        with self._closing:
            self._closed = True
            self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            jobs = [job]
            closing = False
            while not closing and len(jobs) < _IN_ONE_COMMIT:
                try:
                    more = self._jobs.get_nowait()
                except queue.Empty:
                    break
                closing = more is None
                jobs += [more] if more is not None else []
            self._finish(jobs)
            if closing:
                return

    def _finish(self, jobs: Sequence[_PendingWrite]) -> None:
        """One job's failure is not another's: where all together fail, each is tried alone."""
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
