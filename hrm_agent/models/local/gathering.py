"""Gathering of requests: a step waits while the callers' event loop is still preparing more
requests.

After a tool's result, the event loop runs a few hundred callbacks until the graph makes its next
request, and all parallel rollouts share one event loop. Without waiting, the engine would take many
small steps for the first few requests. A small step costs about as much Python time as a full step,
for which the event loop has to wait. So if fewer than half of the recent number of requests are
there, the engine checks before a step if the callers' loop still has something to run, and lets it
continue.

Waiting loses little time, since the loop works on the next requests meanwhile. A wait ends when
half of the requests have arrived, when the loop is idle, or after a tenth of a second. The recent
number decays within some seconds, so the engine soon stops waiting for a loop that is busy for
other reasons. If a node blocks the loop until it has its answer, the engine waits once, not at each
step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = ["Gathering"]

_LONGEST_SECONDS = 0.1
_LOOK_SECONDS = (0.0002, 0.001)
"""First and longest pause between two checks, in seconds."""
_IDLE_SECONDS = 0.0002
"""Duration of a pass of the event loop, in seconds, below which the pass counts as idle."""
_HALF_LIFE_SECONDS = 5.0
"""Half-life of the recent number of requests."""


class Gathering:
    """Monitor of the event loop of the last request. `called` runs in the callers' threads, all
    other methods in the engine's.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._most = 0.0
        self._counted_at = 0.0
        self._stands = False
        """True if the last caller's loop made no pass while the engine waited for it."""

    def called(self) -> None:
        """Record a request from this thread."""
        try:
            self._loop = asyncio.get_running_loop()
            self._stands = False
        except RuntimeError:  # the caller is a thread without a loop, which waits for its answer
            self._loop = None

    def wait(self, requests: Callable[[], int]) -> None:
        """Return when a step is worth taking. `requests`: function that returns the current number
        of requests, which may grow meanwhile.
        """
        loop = self._loop
        now = time.monotonic()
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
    """Measurement of an event loop's passes, until a pass has run no other callbacks."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.idle = self.over = self.ran = False
        self._loop = loop
        self._began = 0.0
        try:
            loop.call_soon_threadsafe(self._pass)
        except RuntimeError:  # the loop is closed
            self.idle = True

    def _pass(self) -> None:
        now = time.perf_counter()
        self.ran = True
        self.idle = now - self._began < _IDLE_SECONDS
        self._began = now
        if not (self.idle or self.over):
            self._loop.call_soon(self._pass)
