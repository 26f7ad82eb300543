"""What checkpoints and journal stand on: transactions over a SQLite file or a PostgreSQL database.

A write is a function of a cursor. It is committed as a whole before its future is done, or not at all, and it is
idempotent: where the answer to a commit was lost (a server that restarts), the same work is done again. How durable a
commit is, is the body's affair (`SqliteDatabase`, `PostgresDatabase`).

Where a commit has to wait for a disk, one thread commits for all: what arrives during one wait shares the next
(`Committer`). A checkpoint's pending writes come `lazy`: they wait a moment for the checkpoint that follows them, so
that a step of a graph is one transaction.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

__all__ = ["Committer", "Cursor", "Database", "Work", "placeholders", "settled"]

T = TypeVar("T")
_LAZY_SECONDS = 0.002
"""How long a checkpoint's writes wait for company: less than the fsync that they save."""
_IN_ONE_COMMIT = 512


class Cursor(Protocol):
    """What both drivers have in common. Placeholders are `?`."""

    def execute(self, query: str, values: Sequence[Any] = ..., /) -> Self: ...
    def executemany(self, query: str, values: Iterable[Sequence[Any]], /) -> Any: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


Work = Callable[[Cursor], T]


class Database(ABC):
    """One opened store. Thread-safe."""

    url: str
    """By which it is opened again, without a password."""
    folder: Path
    """Where side files of its runs lie."""
    path: Path | None = None
    """The file, of a database that is one."""
    waits: bool
    """A write waits for a disk or a server: worth leaving the event loop for."""
    level: str
    """What a commit survives: `process` or `power`."""

    @abstractmethod
    def read(self) -> AbstractContextManager[Cursor]:
        """A cursor that sees one moment: everything whose future was done before."""

    @abstractmethod
    def submit(self, work: Work[T], *, lazy: bool = False) -> Future[T]:
        """Do `work` in a transaction; the future is done when it is committed. Raises `StoreError` through it."""

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
    def close(self) -> None: ...

    def write(self, work: Work[T]) -> T:
        """Do `work` in a transaction and wait for it."""
        return self.submit(work).result()


async def settled(future: Future[T]) -> T:
    """The result of `future`, without a round through the event loop where it is done already."""
    return future.result() if future.done() else await asyncio.wrap_future(future)


def placeholders(count: int) -> str:
    """`?, ?, ?`"""
    return ", ".join("?" * count)


@dataclass(frozen=True, slots=True)
class _Job:
    work: Work[Any]
    future: Future[Any]
    lazy: bool


class Committer:
    """One thread that commits for many: all jobs that are waiting go into one transaction."""

    def __init__(self, commit: Callable[[Sequence[Work[Any]]], list[Any]]) -> None:
        self._commit = commit
        """Does all of the works in one transaction, or none; their results in order."""
        self._jobs: list[_Job] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="store-commits", daemon=True)
        self._thread.start()

    def submit(self, work: Work[T], *, lazy: bool = False) -> Future[T]:
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("the store is closed")
            self._jobs.append(_Job(work, future, lazy))
            self._changed.notify()
        return future

    def drain(self) -> None:
        """Wait until everything that was submitted so far is committed, or has failed."""
        self.submit(lambda _: None).result()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while jobs := self._next():
            try:
                results = self._commit([job.work for job in jobs])
            except BaseException as error:
                self._one_by_one(jobs, error)
            else:
                for job, result in zip(jobs, results, strict=True):
                    job.future.set_result(result)

    def _next(self) -> list[_Job]:
        """The jobs of the next transaction; none when closed and done."""
        with self._changed:
            while not self._jobs and not self._closed:
                self._changed.wait()
            if not self._closed and all(job.lazy for job in self._jobs):
                self._changed.wait_for(
                    lambda: self._closed or not all(job.lazy for job in self._jobs), timeout=_LAZY_SECONDS
                )
            jobs, self._jobs = self._jobs[:_IN_ONE_COMMIT], self._jobs[_IN_ONE_COMMIT:]
        return jobs

    def _one_by_one(self, jobs: Sequence[_Job], error: BaseException) -> None:
        """One job's failure is not another's."""
        if len(jobs) == 1:
            jobs[0].future.set_exception(error)
            return
        for job in jobs:
            try:
                job.future.set_result(self._commit([job.work])[0])
            except BaseException as own:
                job.future.set_exception(own)
