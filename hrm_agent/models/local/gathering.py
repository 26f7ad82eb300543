"""Gathering of requests: a step waits while the callers' event loop is still preparing more.

A graph's next turn comes a few hundred callbacks after its tool's result, and all graphs of a
rollout share one event loop. An engine that starts a step for the first few requests takes many
small steps, and each costs about as much as a full one, in Python time that the event loop waits
for. So before a step for less than half of the recent number of requests, the engine checks if the
callers' loop still has something to run, and lets it continue.

Little can be lost: while the engine waits, the loop works on the next requests. A wait ends when
half of the requests have arrived, when the loop is idle, or after a tenth of a second. The recent
number decays within some seconds, so that a loop that is busy for other reasons is not waited for
long. A blocked loop (by a node that blocks it until it has its answer) is waited for once, not at
each step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = ["Gathering"]

_LONGEST_SECONDS = 0.1
_LOOK_SECONDS = (0.0002, 0.001)
"""First and longest pause between two checks."""
_IDLE_SECONDS = 0.0002
"""Duration of an event loop pass below which it has run nothing."""
_HALF_LIFE_SECONDS = 5.0
"""Half-life of the recent number of requests."""


class Gathering:
    """Monitor of the event loop of the last request. `called` runs in the callers' threads, all
    else in the engine's.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._most, self._counted_at = 0.0, 0.0
        self._stands = False
        """True if the last caller's loop did nothing while it was waited for."""

    def called(self) -> None:
        """Record a request from this thread."""
        try:
            self._loop, self._stands = asyncio.get_running_loop(), False
        except RuntimeError:  # a separate thread, which waits for its answer
            self._loop = None

    def wait(self, requests: Callable[[], int]) -> None:
        """Return when a step is worth taking for the current `requests`, whose number may grow
        meanwhile.
        """
        loop, now = self._loop, time.monotonic()
        self._most = max(
            requests(), self._most * 0.5 ** ((now - self._counted_at) / _HALF_LIFE_SECONDS)
        )
        self._counted_at = now
        if loop is None or self._stands or not requests() or 2 * requests() >= self._most:
            return
        ends = now + _LONGEST_SECONDS
        pass_, (pause, longest) = _Passes(loop), _LOOK_SECONDS
        while not pass_.idle and 2 * requests() < self._most and time.monotonic() < ends:
            time.sleep(pause)
            pause = min(2 * pause, longest)
        pass_.over = True
        self._stands = not (pass_.ran or pass_.idle) and time.monotonic() >= ends


class _Passes:
    """Measurement of an event loop's passes until one has run nothing else."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.idle = self.over = self.ran = False
        self._loop, self._began = loop, 0.0
        try:
            loop.call_soon_threadsafe(self._pass)
        except RuntimeError:  # the loop is closed
            self.idle = True

    def _pass(self) -> None:
        now, self.ran = time.perf_counter(), True
        self.idle = now - self._began < _IDLE_SECONDS
        self._began = now
        if not (self.idle or self.over):
            self._loop.call_soon(self._pass)
