"""Calls of one connection, started in order while there is room for their answers. A client makes
room by reading.

The memory of one connection is bounded: a call is started only if all unread answers, and the space
reserved for running calls, fit into `MOST_KEPT`. The space reserved for a call is its output limit,
at most `MOST_RESERVED`. A call that prints more than its reserved space exceeds the bound by the
difference. Calls that do not fit are held, each as a small object without a task. The event `room`
is cleared while no more requests are accepted. Requests that are not calls are never held.

All connections of a client together may keep `clients.MOST_UNREAD` characters. Beyond that, the
connection with the most is aborted, and its calls end. The environment keeps outcomes of finished
calls, within its own bound, for clients that submit the calls again.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from hrm_agent.environment.base import Submission
from hrm_agent.environment.remote.calls import Calls
from hrm_agent.environment.remote.clients import Client
from hrm_agent.environment.remote.messages import MOST_WAIT
from hrm_agent.errors import HrmError

__all__ = [
    "MOST_HELD",
    "MOST_HELD_CHARACTERS",
    "MOST_KEPT",
    "MOST_RESERVED",
    "MOST_UNREAD",
    "Exchange",
]

_MIB = 1024 * 1024
MOST_KEPT = 64 * _MIB
"""Maximum of the characters of unread answers plus the bytes reserved for running calls."""
MOST_RESERVED = _MIB
"""Maximum number of bytes reserved for the output of one running call. A call with a higher limit
rarely prints so much. Its actual output counts in full once the call is answered.
"""
MOST_UNREAD = 8 * _MIB
"""Number of characters of unread answers above which no more requests are accepted."""
MOST_HELD, MOST_HELD_CHARACTERS = 10_000, 8 * _MIB
"""Number of held calls, or of running calls, and characters of the held calls' code. From these
numbers on, no more requests are accepted.
"""
_STREAMS = 2
"""Number of streams (stdout and stderr). The output limit of a call applies to each."""
_ENVELOPE = 4096
"""Approximate number of characters of an answer besides its output."""

Work = Callable[[], Coroutine[Any, Any, dict[str, Any]]]


@dataclass(slots=True, eq=False)
class _Held:
    work: Work
    room: int
    """Bytes reserved for the answer."""
    characters: int = 0
    timer: asyncio.TimerHandle | None = None
    """Timer of the call's deadline."""


class Exchange:
    """Calls and answers of one connection. Made and used on one event loop."""

    def __init__(
        self, calls: Calls, client: Client, form: Callable[[int, dict[str, Any]], str]
    ) -> None:
        """Make an exchange. `form`: makes the text that is sent to the client from a key and its
        answer.
        """
        self._calls = calls
        self._client = client
        self._form = form
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._held_characters = 0
        self._tasks: dict[int, tuple[asyncio.Task[dict[str, Any]], int]] = {}
        """Running calls: key -> (task, bytes reserved for the answer)."""
        self._kept = 0
        self._answers: deque[str] = deque()
        self.unread = 0
        """Characters of unread answers, including those being sent."""
        self.ready, self.room = asyncio.Event(), asyncio.Event()
        """Events. `ready`: an answer can be sent, or all requests are done. `room`: more requests
        are accepted.
        """
        self.room.set()
        client.exchanges.add(self)
        self._closed = False
        self.abort: Callable[[], None] = lambda: None
        """Function that ends the connection of a client that does not read."""

    @property
    def under_way(self) -> int:
        """Number of calls that have begun."""
        return len(self._tasks)

    @property
    def is_over(self) -> bool:
        """True if no call is open and all answers were handed out."""
        return not (self._held or self._tasks or self._answers)

    def __contains__(self, key: int) -> bool:
        return key in self._tasks or key in self._held

    def take_call(self, key: int, submission: Submission) -> None:
        """Start a call, or hold it."""
        size = len(submission.code) + sum(len(cell.code) for cell in submission.history or ())
        output = min(MOST_RESERVED, max(0, _STREAMS * submission.limits.output_bytes))
        held = _Held(
            partial(self._calls.answer, self._client, submission), _ENVELOPE + output, size
        )
        self._calls.opened()
        if not self._held and self._fits(held):
            self._begin(key, held)
            return
        self._held[key] = held
        self._held_characters += held.characters
        self._look()
        arrived = time.monotonic()
        seconds = submission.deadline_seconds
        held.work = partial(self._calls.answer, self._client, submission, arrived)
        # an invalid deadline has no timer: the environment refuses the call
        if seconds is not None and 0 <= seconds <= MOST_WAIT:

            def late() -> None:
                self._unhold(key)
                self._calls.ended()
                self.answer(key, self._calls.too_late(submission, arrived))

            held.timer = asyncio.get_running_loop().call_later(seconds, late)

    def take_work(self, key: int, work: Work) -> None:
        """Start a request that is not a call. It starts at once: it needs no room for output, and
        held calls must not delay it.
        """
        self._calls.opened()
        self._begin(key, _Held(work, _ENVELOPE))
        self._look()

    def cancel(self, key: int) -> None:
        """Cancel a request. An unknown key is ignored."""
        if key in self._tasks:
            self._tasks[key][0].cancel()
        elif key in self._held:
            self._unhold(key)
            self._calls.ended()
            self._go_on()

    def answer(self, key: int, answer: dict[str, Any]) -> None:
        """Queue an answer for the client, unless the connection is closed."""
        if self._closed:
            return
        try:
            text = self._form(key, answer)
        except HrmError as error:  # a number in the answer has no JSON form
            text = self._form(key, {"error": error.message, "hint": error.hint})
        self._answers.append(text)
        self._kept += len(text)
        self.unread += len(text)
        self.ready.set()
        self._look()
        self._client.kept(len(text))

    def next(self) -> str:
        """Oldest answer that is not sent yet (empty if there is none). The caller has to call
        `was_read` once the answer was sent.
        """
        return self._answers.popleft() if self._answers else ""

    def was_read(self, characters: int) -> None:
        """Count `characters` returned by `next` as sent."""
        if self._closed:  # `close` has reset the counts
            return
        self._kept -= characters
        self.unread -= characters
        self._client.unread -= characters
        self._go_on()

    def close(self) -> None:
        """End the calls of a connection that was closed."""
        self._closed = True
        self._client.exchanges.discard(self)
        self._client.unread -= self.unread
        self.unread = 0
        self._answers.clear()
        for key in list(self._held):
            self._unhold(key)
            self._calls.ended()
        for task, _ in self._tasks.values():
            task.cancel()

    def _fits(self, held: _Held) -> bool:
        return not self._kept or self._kept + held.room <= MOST_KEPT

    def _begin(self, key: int, held: _Held) -> None:
        self._kept += held.room
        task = asyncio.get_running_loop().create_task(held.work())
        self._tasks[key] = task, held.room
        task.add_done_callback(partial(self._end, key))

    def _end(self, key: int, task: asyncio.Task[dict[str, Any]]) -> None:
        self._kept -= self._tasks.pop(key)[1]
        self._calls.ended()
        if not task.cancelled():
            self.answer(key, task.result())
        self._go_on()

    def _go_on(self) -> None:
        """Start held calls for which there is room."""
        while self._held and not self._closed and self._fits(next(iter(self._held.values()))):
            key = next(iter(self._held))
            self._begin(key, self._unhold(key))
        self._look()
        if self.is_over:
            self.ready.set()

    def _unhold(self, key: int) -> _Held:
        held = self._held.pop(key)
        self._held_characters -= held.characters
        if held.timer is not None:
            held.timer.cancel()
        return held

    def _look(self) -> None:
        """Set or clear `room`."""
        full = (
            max(len(self._held), len(self._tasks)) >= MOST_HELD
            or self._held_characters > MOST_HELD_CHARACTERS
        )
        if full or self.unread > MOST_UNREAD:
            self.room.clear()
        else:
            self.room.set()
