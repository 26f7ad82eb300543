"""Guard for loops that serve many callers, in threads or tasks: an error caused by one caller must
not end the loop.

    guard = LoopGuard("store-commits", wake)
    while not closed:
        with guard:
            turn()

An exception ends its turn of the loop. It is logged, and counted by the name of the loop
(`surprises`). Then the next turn begins. The code inside the turn has to report the failure to its
caller. `responds` checks that the loop is alive.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import ParamSpec

__all__ = ["LoopGuard", "surprises"]

_P = ParamSpec("_P")
_LOG = logging.getLogger(__name__)
_FIRST_REST, _LONGEST_REST = 0.001, 1.0
"""First and longest pause in seconds between turns that raise one after the other."""
_WAKES_EVERY = 0.05
_counts: Counter[str] = Counter()
_counting = threading.Lock()


def surprises() -> dict[str, int]:
    """Number of turns that raised in this process so far, by name of the loop."""
    with _counting:
        return dict(_counts)


class LoopGuard:
    """Guard of one loop, entered once a turn. It does not catch the cancellation of a task or, in
    the main thread, an interrupt.
    """

    def __init__(
        self, name: str, wake: Callable[[], object] = lambda: None, *, rests: bool = True
    ) -> None:
        """Make a guard. `wake`: ends the loop's sleep, so that it begins a turn. `rests`: sleep
        when several turns in a row have raised, longer each time; not for turns of an event loop.
        """
        self._name = name
        self._wake = wake
        self._rests = rests
        self.surprises = 0
        """Number of turns that raised so far."""
        self._in_a_row = 0
        self._asked: list[threading.Event] = []

    def __enter__(self) -> None:
        while self._asked:
            self._asked.pop().set()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if error is None:
            self._in_a_row = 0
            return False
        if _passes(error):
            return False
        self.caught(error)
        return True

    def call(self, function: Callable[_P, object], *args: _P.args, **options: _P.kwargs) -> bool:
        """Call `function` and catch any exception. False if it raised. Not for tasks or the main
        thread, since interrupts are caught too.
        """
        try:
            function(*args, **options)
        except BaseException as error:  # no exception of a callback is meant for this thread
            self.caught(error)
            return False
        return True

    def caught(self, error: BaseException) -> None:
        """Count and log what a turn raised."""
        with _counting:
            self.surprises += 1
            _counts[self._name] += 1
        _LOG.error("The loop %s goes on after an unexpected error.", self._name, exc_info=error)
        if self._rests and self._in_a_row:
            time.sleep(min(_LONGEST_REST, _FIRST_REST * 2 ** min(self._in_a_row, 20)))
        self._in_a_row += 1

    def responds(self, seconds: float) -> bool:
        """True if the loop begins a turn within `seconds`. Must be called in another thread than
        the loop's.
        """
        begun = threading.Event()
        ends = time.monotonic() + seconds
        self._asked.append(begun)
        while (left := ends - time.monotonic()) > 0:
            self._wake()  # repeated, since a call just before the loop falls asleep has no effect
            if begun.wait(min(left, _WAKES_EVERY)):
                return True
        with suppress(ValueError):  # the loop has begun a turn just now
            self._asked.remove(begun)
        return begun.is_set()


def _passes(error: BaseException) -> bool:
    """True if an exception is meant for the thread or the task itself."""
    if isinstance(error, Exception):
        return False
    if threading.current_thread() is threading.main_thread() or isinstance(error, GeneratorExit):
        return True
    if not isinstance(error, asyncio.CancelledError):
        return False
    try:
        return asyncio.current_task() is not None
    except RuntimeError:  # no event loop runs here
        return False
