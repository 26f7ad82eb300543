"""Actor on a node of a Ray cluster: runs works in the node's slots and returns their outcomes.

The driver (`workers`) sends plain tuples of numbers and texts. Ray pickles its messages, but only
between two of our own processes; output of model-written code is sent as text, never as an object.

`give` returns at once. `collect` is a long poll: it returns all outcomes as soon as there is one,
so a slow work does not delay others of its batch. While works wait for a slot here, outcomes are
held back for a few milliseconds: no slot is idle for that, and there are fewer messages. A message
that fails is not sent again: the driver then gives the node up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from hrm_agent.basics.async_bridge import call_in_thread
from hrm_agent.basics.guarded_loop import LoopGuard
from hrm_agent.environment.base import ExecutionResult, Limits
from hrm_agent.environment.local.slot_files import infrastructure_failure
from hrm_agent.environment.scheduler.workers import Work, Workers
from hrm_agent.errors import HrmError
from hrm_agent.trajectory import ToolStatus

__all__ = ["POLL_SECONDS", "Collected", "Event", "Given", "RayNode", "pack", "unpack"]

POLL_SECONDS = 10.0
"""Seconds after which a `collect` without events returns, as a sign of life."""
HELD_SECONDS = 0.005
_GUARD = LoopGuard("ray-node", rests=False)
Given = tuple[int, str, tuple[float, float, int, int], int, bool, int, bool]
"""Message for a work: its number, code, limits, session, fresh, seed, again."""
Event = tuple[int, int, tuple[Any, ...]]
"""Message for an ended work: (number, 1 if it was lost, packed outcome), or for a session whose
process is gone: (0, session, ()).
"""
Collected = tuple[list[Event], int]
"""Events in order, and the number of slots that died so far."""


def pack(result: ExecutionResult) -> tuple[Any, ...]:
    """Outcome as a tuple of numbers and texts, without the fields set by the scheduler."""
    return (
        result.status.value,
        result.stdout,
        result.stderr,
        result.value,
        result.value_json,
        result.duration_seconds,
        result.cpu_seconds,
        result.peak_memory_bytes,
        result.stdout_bytes,
        result.stderr_bytes,
        result.isolation,
        dict(result.refused),
    )


def unpack(packed: tuple[Any, ...]) -> ExecutionResult:
    """Outcome from the tuple of `pack`."""
    *outcome, refused = packed[1:]
    return ExecutionResult(ToolStatus(packed[0]), *outcome, refused=refused)


class RayNode:
    """Actor of a node. Its methods run on one event loop. Only the `done` callbacks of works and
    `_died` are called from other threads.
    """

    def __init__(self, make: Callable[[], Workers]) -> None:
        self._refusal = ""
        self._works: dict[int, Work] = {}
        self._waiting: deque[int] = deque()
        self._running: set[int] = set()
        self._events: list[Event] = []
        self._something = asyncio.Event()
        try:
            self._workers = make()
        except HrmError as error:  # if raised, it would look like the death of the actor
            self._refusal = str(error)
        else:
            self._workers.on_session_death(self._died)

    async def hello(self) -> tuple[str, int, str]:
        """Tuple (isolation level, number of slots, reason if there are none)."""
        self._loop = asyncio.get_running_loop()
        return (
            ("", 0, self._refusal)
            if self._refusal
            else (str(self._workers.isolation), self._workers.slots, "")
        )

    async def give(self, works: list[Given], killed: list[int], ended: list[int]) -> None:
        """Accept new works, kill some works, and end some sessions."""
        for number in killed:
            with _GUARD:
                self._kill(number)
        for session in ended:
            with _GUARD:
                self._workers.end_session(session)
        for number, code, limits, session, fresh, seed, again in works:
            done = self._done_with(number)
            self._works[number] = Work(code, Limits(*limits), done, session, fresh, seed, again)
            self._waiting.append(number)
        self._fill()

    async def collect(self) -> Collected:
        """Events since the last call. Waits up to `POLL_SECONDS` for one."""
        if not self._events:
            self._something.clear()
            try:
                await asyncio.wait_for(self._something.wait(), POLL_SECONDS)
            except TimeoutError:
                await self._check()
        if self._waiting:
            await asyncio.sleep(HELD_SECONDS)
        events, self._events = self._events, []
        return events, self._workers.slot_deaths

    async def _check(self) -> None:
        """Check the thread of the slots, so that a sign of life includes it. Raises HrmError if it
        does not respond: the driver gives the node up.
        """
        asked = call_in_thread(partial(self._workers.responds, POLL_SECONDS))
        if not await asyncio.wrap_future(asked):
            raise HrmError("The thread that serves the slots of this node does not answer.")

    async def close(self) -> None:
        """Kill all that still runs."""
        if not self._refusal:
            await asyncio.to_thread(self._workers.close)

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._workers.slots:
            number = self._waiting.popleft()
            self._running.add(number)
            try:
                self._workers.start(self._works[number])
            except Exception as error:  # the work gets an outcome for any error
                self._answer(
                    number, self._failure(f"The call could not be started: {error}"), lost=True
                )

    def _kill(self, number: int) -> None:
        if number in self._running:
            self._workers.kill(self._works[number])
        elif number in self._works:
            self._waiting.remove(number)
            self._answer(number, self._failure("killed before it began"), lost=False)

    def _failure(self, reason: str) -> ExecutionResult:
        return infrastructure_failure(reason, str(self._workers.isolation))

    def _done_with(self, number: int) -> Callable[[ExecutionResult, bool], None]:
        def done(result: ExecutionResult, lost: bool) -> None:
            self._loop.call_soon_threadsafe(self._ended, number, result, lost)

        return done

    def _ended(self, number: int, result: ExecutionResult, lost: bool) -> None:
        if number in self._works:
            self._answer(number, result, lost=lost)
            self._fill()

    def _answer(self, number: int, result: ExecutionResult, *, lost: bool) -> None:
        del self._works[number]
        self._running.discard(number)
        self._note((number, int(lost), pack(result)))

    def _died(self, session: int) -> None:
        self._loop.call_soon_threadsafe(self._note, (0, session, ()))

    def _note(self, event: Event) -> None:
        self._events.append(event)
        self._something.set()
