"""Deferred writes, which go with the next commit of any caller.

Also futures of writes: one that is done from the start, and a way for an event loop to wait for
any.
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
"""Error classes of both drivers for an invalid row."""


class DeferredFailed(Exception):
    """Error of deferred work that cannot be committed."""

    def __init__(self, work: DeferredWork, reason: Exception) -> None:
        super().__init__(str(reason))
        self.work, self.reason = work, reason


class DeferredWork:
    """Deferred work that separates its own failure from the database's.

    `on_done` is called in any thread when it is committed (with None), or given up (with the
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
                _log.exception("What follows a write has failed.")

    def __call__(self, cursor: WriteCursor) -> Any:
        try:
            return self._work(cursor)
        except Exception as error:
            if is_of_driver(error):
                raise
            raise DeferredFailed(self, error) from error


def is_late(works: Sequence[DeferredWork], seconds: float) -> bool:
    """True if the oldest work has waited for longer: the disk is slow, another process writes, or
    no thread had time.

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
        and not _REFUSED.isdisjoint(_names(type(error)))
    )


def _names(type_: type) -> list[str]:
    return [each.__name__ for each in type_.__mro__]


T = TypeVar("T")


class FinishedFuture(Future[T]):
    """Future that is done from the start. It has no locks, as it never blocks."""

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
    """Result of `future`, without a round through the event loop if it is done already."""
    return future.result() if future.done() else await asyncio.wrap_future(future)
