"""Writes that are deferred to the next commit, whichever caller triggers it.

Futures of writes: one that is done when it is made, and how an event loop waits for any.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hrm_agent.store.database.fencing import HeldLease

if TYPE_CHECKING:
    from hrm_agent.store.database.cursors import Work, WriteCursor

__all__ = [
    "DeferredFailed",
    "DeferredWork",
    "FinishedFuture",
    "committed",
    "is_late",
    "is_of_driver",
    "is_refused",
]

_log = logging.getLogger(__name__)
_NO_LEASES = frozenset[HeldLease]()
_DRIVERS = ("sqlite3", "psycopg")
_REFUSED = {"IntegrityError", "DataError"}
"""Classes of both drivers' errors that say that a row itself is wrong."""


class DeferredFailed(Exception):
    """Work that was to go with a commit, and cannot."""

    def __init__(self, work: DeferredWork, reason: Exception) -> None:
        super().__init__(str(reason))
        self.work, self.reason = work, reason


class DeferredWork:
    """Work whose own failure can be told from the database's.

    `on_done` is called, in any thread, when it is committed (with None), or given up (with the
    reason).
    """

    def __init__(
        self, work: Work[Any], on_done: Callable[[Exception | None], object] | None = None
    ) -> None:
        self._work, self._on_done = work, on_done
        self.leases: frozenset[HeldLease] = getattr(work, "leases", _NO_LEASES)
        self.since = time.monotonic()

    @property
    def tells(self) -> bool:
        """Somebody is told what comes of it."""
        return self._on_done is not None

    def done(self, error: Exception | None = None) -> None:
        """Say that it is committed, or why it never will be. What is done then cannot undo that."""
        if self._on_done is not None:
            try:
                self._on_done(error)
            except Exception:
                _log.exception("What follows a write has failed.")

    def __call__(self, cursor: WriteCursor) -> Any:
        try:
            return self._work(cursor)
        except Exception as error:
            if is_of_driver(error):
                raise
            raise DeferredFailed(self, error) from error


def is_late(works: Sequence[DeferredWork], seconds: float) -> bool:
    """Whether the oldest has been waiting for longer: the disk is slow, another process writes, or
    no thread had time.

    `works` may change meanwhile.
    """
    oldest = next(iter(works), None)
    return oldest is not None and time.monotonic() - oldest.since > seconds


def is_of_driver(error: Exception) -> bool:
    """Whether the error is the database driver's, rather than one raised by the work itself."""
    return type(error).__module__.partition(".")[0] in _DRIVERS


def is_refused(error: BaseException | None) -> bool:
    """Whether the database refuses a row itself, and would each time."""
    return (
        isinstance(error, Exception)
        and is_of_driver(error)
        and not _REFUSED.isdisjoint(_names(type(error)))
    )


def _names(type_: type) -> list[str]:
    return [each.__name__ for each in type_.__mro__]


T = TypeVar("T")


class FinishedFuture(Future[T]):
    """A future that is done when it is made: nobody waits for it, so it has none of the locks that
    waiting takes.
    """

    def __init__(self, value: T | None, error: BaseException | None = None) -> None:
        self._value, self._error = value, error

    def result(self, timeout: float | None = None) -> T:
        if self._error is not None:
            raise self._error
        return cast(T, self._value)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return self._error

    def done(self) -> bool:
        return True

    def running(self) -> bool:
        return False

    def cancel(self) -> bool:
        return False

    def cancelled(self) -> bool:
        return False

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        try:
            fn(self)
        except Exception:  # as the standard library's futures
            _log.exception("What follows a write has failed.")


async def committed(future: Future[T]) -> T:
    """The result of `future`, without a round through the event loop where it is done already."""
    return future.result() if future.done() else await asyncio.wrap_future(future)
