"""Tells when calls have waited too long: on time, not when a slot happens to be free."""

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
"""Seconds. A condition cannot be waited for by any number of them."""


class Deadlines:
    """Thread-safe. One thread, started with the first deadline, sleeps until the earliest."""

    def __init__(self, passed: Callable[[ScheduledCall], None]) -> None:
        """`passed` is called with each call whose time is over, whether it has begun by then or
        not.
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
        """`when` by the monotonic clock."""
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
        """True if the thread turns, or there is none yet."""
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
        """A call is over in milliseconds, its deadline may be minutes away: the heap must not keep
        what has ended.
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
        """The call that is due; None after a sleep, when it is worth another look."""
        with self._changed:
            left = self._heap[0][0] - time.monotonic() if self._heap else None
            if left is not None and left <= 0:
                return heappop(self._heap)[2]
            if not self._closed:
                self._changed.wait(_LONGEST_SLEEP if left is None else min(left, _LONGEST_SLEEP))
            return None
