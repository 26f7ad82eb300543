"""Deadlines of waiting calls, reported on time and not only when a slot is free."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from hrm_agent.basics.guarded_loop import LoopGuard
from hrm_agent.environment.scheduler.sessions import ScheduledCall, Stage

__all__ = ["Deadlines"]

_FEW = 1024
_LONGEST_SLEEP = 3600.0
"""Longest sleep in seconds. A condition's timeout is limited."""


class Deadlines:
    """Deadlines of calls. Thread-safe. One thread, started with the first deadline, sleeps until
    the earliest.
    """

    def __init__(self, passed: Callable[[ScheduledCall], None]) -> None:
        """Make an empty set. `passed`: called with each call whose deadline is over, whether it has
        begun or not.
        """
        self._passed = passed
        self._changed = threading.Condition()
        self._guard = LoopGuard("environment-deadlines", self._wake)
        self._heap: list[tuple[float, int, ScheduledCall]] = []
        self._number = 0
        self._most = _FEW
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, when: float, call: ScheduledCall) -> None:
        """Add a deadline, `when` by the monotonic clock."""
        with self._changed:
            self._number += 1
            heappush(self._heap, (when, self._number, call))
            if len(self._heap) > self._most:
                self._forget_the_ended()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, name="environment-deadlines", daemon=True
                )
                self._thread.start()
            elif self._heap[0][2] is call:
                self._changed.notify()

    def responds(self, seconds: float) -> bool:
        """True if the thread responds, or is not started yet or closed."""
        return self._thread is None or self._closed or self._guard.responds(seconds)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._heap.clear()
            self._changed.notify()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _forget_the_ended(self) -> None:
        """Remove ended calls. A call may end in milliseconds with a deadline minutes away, and must
        not stay in the heap.
        """
        self._heap = [entry for entry in self._heap if entry[2].stage is not Stage.ENDED]
        heapify(self._heap)
        self._most = max(_FEW, 2 * len(self._heap))

    def _watch(self) -> None:
        while not self._closed:
            with self._guard:
                call = self._next()
                if call is not None:
                    self._passed(call)

    def _next(self) -> ScheduledCall | None:
        """Call that is due (None after a sleep)."""
        with self._changed:
            left = self._heap[0][0] - time.monotonic() if self._heap else None
            if left is not None and left <= 0:
                return heappop(self._heap)[2]
            if not self._closed:
                self._changed.wait(_LONGEST_SLEEP if left is None else min(left, _LONGEST_SLEEP))
            return None
