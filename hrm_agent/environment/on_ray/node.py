"""Actor on a node of a Ray cluster: runs works in the node's slots and returns their outcomes.

Ray pickles its messages. This is safe, since both sides are processes of this package, and output
of model-written code is sent as text in an outcome, never as an object. A message that fails is not
sent again. If the actor or its node has failed, the driver (`workers`) gives the node up. If only a
message has failed, only its work fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from hrm_agent.basics.async_bridge import call_in_thread
from hrm_agent.environment.base import ExecutionResult, Limits
from hrm_agent.environment.local.slot_files import infrastructure_failure
from hrm_agent.environment.scheduler.workers import Work, Workers
from hrm_agent.errors import HrmError

__all__ = ["RESPONSE_SECONDS", "Given", "RayNode", "given_of"]

RESPONSE_SECONDS = 10.0
"""Seconds within which the thread that serves the slots has to respond."""
Given = tuple[str, Limits, int, bool, int, bool]
"""Message for a work: its code, limits, session, fresh, seed, again."""


def given_of(work: Work) -> Given:
    """Message for a work."""
    return work.code, work.limits, work.session, work.fresh, work.seed, work.again


class RayNode:
    """Actor of a node. Its methods run on one event loop, except `_died` and the `done` callbacks
    of works, which other threads call.
    """

    def __init__(self, make: Callable[[], Workers]) -> None:
        self._refusal = ""
        self._waiting: dict[int, Work] = {}
        """Works without a slot, in order."""
        self._running: dict[int, Work] = {}
        self._killed: set[int] = set()
        """Numbers of works killed before they arrived."""
        self._dead: set[int] = set()
        """Sessions whose process is gone, of which the driver was not told yet."""
        try:
            self._workers = make()
        except HrmError as error:  # a raised error would look like the death of the actor
            self._refusal = str(error)
        else:
            self._workers.on_session_death(self._died)

    async def hello(self) -> tuple[str, int, str]:
        """Tuple (isolation level, number of slots, reason if there are no slots)."""
        if self._refusal:
            return "", 0, self._refusal
        self._loop = asyncio.get_running_loop()
        return str(self._workers.isolation), self._workers.slots, ""

    async def run(self, number: int, given: Given) -> tuple[ExecutionResult, bool, bool]:
        """Run a work once a slot is free. Returns (outcome, True if the work was lost, True if its
        session's process is gone).
        """
        ended: asyncio.Future[tuple[ExecutionResult, bool]] = self._loop.create_future()

        def done(result: ExecutionResult, lost: bool) -> None:
            self._loop.call_soon_threadsafe(ended.set_result, (result, lost))

        code, limits, session, fresh, seed, again = given
        self._waiting[number] = Work(code, limits, done, session, fresh, seed, again)
        if number in self._killed:
            self._killed.discard(number)
            await self.kill(number)
        self._fill()
        try:
            result, lost = await ended
        finally:
            self._running.pop(number, None)
            self._fill()
        died = session in self._dead
        self._dead.discard(session)
        return result, lost, died

    async def kill(self, number: int) -> None:
        """Kill a work that is running, is waiting for a slot, or has not arrived yet."""
        if number in self._running:
            self._workers.kill(self._running[number])
        elif number in self._waiting:
            self._waiting.pop(number).done(self._failure("killed before it began"), False)
        else:
            self._killed.add(number)

    async def end_session(self, session: int) -> None:
        """Kill the process of an idle session."""
        self._workers.end_session(session)

    async def check(self) -> tuple[list[int], int]:
        """Idle sessions whose process is gone, and the number of slots that died so far. Raises
        HrmError if the thread of the slots does not respond. The driver then gives the node up.
        """
        asked = call_in_thread(partial(self._workers.responds, RESPONSE_SECONDS))
        if not await asyncio.wrap_future(asked):
            raise HrmError("The thread that serves the slots of this node does not answer.")
        idle = self._dead - {work.session for work in self._running.values()}
        self._dead -= idle
        return list(idle), self._workers.slot_deaths

    async def close(self) -> None:
        """Kill all processes of the node's workers."""
        if not self._refusal:
            await asyncio.to_thread(self._workers.close)

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._workers.slots:
            number = next(iter(self._waiting))
            work = self._running[number] = self._waiting.pop(number)
            try:
                self._workers.start(work)
            except Exception as error:  # the work gets an outcome for any error
                work.done(self._failure(f"The call could not be started: {error}"), True)

    def _failure(self, reason: str) -> ExecutionResult:
        return infrastructure_failure(reason, str(self._workers.isolation))

    def _died(self, session: int) -> None:
        self._loop.call_soon_threadsafe(self._dead.add, session)
