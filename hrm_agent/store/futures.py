"""Futures of writes: one that is done when it is made, and how an event loop waits for any."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar, cast

__all__ = ["FinishedFuture", "committed"]

T = TypeVar("T")
_log = logging.getLogger(__name__)


class FinishedFuture(Future[T]):
    """A future that is done when it is made: nobody waits for it, so it has none of the locks that waiting takes."""

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
