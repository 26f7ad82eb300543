"""Recordings whose requests are counted by a `Meter`, and runs that wait where a request is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from hrm_agent.errors import ConfigError, HrmError
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.training.evaluation.budget import BudgetUsedUp, Meter
from hrm_agent.trajectory import (
    Call,
    GraphIdentity,
    Journal,
    Recording,
    RequestSize,
    Trajectory,
    call_id,
)

__all__ = ["MeteredRecording", "Stuck", "run_until_refused"]


@dataclass(slots=True)
class Stuck:
    """Signal that a run cannot go on, since a request was refused.

    The refusal is not raised in the graph, which could catch it and go on with another state. The
    request waits, and the run is cancelled from outside, as by a kill. A request that cannot wait
    ends as in a cancelled task.
    """

    loop: asyncio.AbstractEventLoop
    """Event loop of the run."""
    event: asyncio.Event = field(default_factory=asyncio.Event)
    """Event that is set when the run cannot go on."""
    error: HrmError | None = None
    """Error by which the request was refused."""

    def report(self) -> None:
        self.loop.call_soon_threadsafe(self.event.set)


class MeteredRecording(Recording):
    """Recording that asks a meter before each request."""

    metered = True

    def __init__(
        self,
        journal: Journal,
        seed: int | None,
        inherited: Collection[str],
        *,
        meter: Meter,
        stuck: Stuck,
        **more: Any,
    ) -> None:
        super().__init__(journal, seed, inherited, **more)
        self._meter = meter
        self._stuck = stuck
        self._open_requests = set[str]()

    def may_ask(self, request: RequestSize) -> bool:
        if self._closed:  # a node in a thread cannot be cancelled
            raise BudgetUsedUp("A request was refused.")
        try:
            accepted = self._meter.reserve(request)
            if not accepted and not request.by_policy:
                self._meter.close()
                raise BudgetUsedUp("A request of a model that the graph holds cannot wait.")
            if not accepted and not request.can_wait:
                raise ConfigError(
                    f"A request to {request.model} has to wait for others, but it blocks the event"
                    " loop: an async function calls the model synchronously.",
                    "Write `await policy().ainvoke(...)` in async functions of the graph, or leave"
                    " out --budget.",
                )
        except HrmError as error:
            self._stuck.error = self._stuck.error or error
            if not self._open_requests:
                self._stuck.report()
            if request.by_policy and request.can_wait:
                return False
            # A node that catches exceptions does not catch this one, as in a cancelled task. If it
            # does nevertheless, the run is not stored as ended.
            self.broken = self.broken or error
            raise asyncio.CancelledError from error
        if accepted:
            self._open_requests.add(request.call_id)
        return accepted

    def write_call(self, call: Call, sent: Any = ()) -> Call:
        written = super().write_call(call, sent)
        if call.error is None:
            self._meter.settle(written)
            self._open_requests.discard(written.id)
        else:
            self._lose(call.identity, call.call_index)
        return written

    def release(self, identity: GraphIdentity, index: int) -> None:
        self._lose(identity, index)
        super().release(identity, index)

    def _lose(self, identity: GraphIdentity, index: int) -> None:
        asked = call_id(identity.thread_id, identity.task_id, index)
        self._meter.lose(asked)
        self._open_requests.discard(asked)


async def run_until_refused(
    runner: EpisodeRunner, episode: Episode, stuck: Stuck
) -> Trajectory | None:
    """Run or resume an episode (None if a request of it was refused). `runner.record` opens a
    recording with `stuck`. Raises the error of a refusal for another reason than the budget.
    """
    running = asyncio.create_task(runner.run(episode))
    waiting = asyncio.create_task(stuck.event.wait())
    try:
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if running.done() and stuck.error is None:
            return running.result()
    finally:
        waiting.cancel()
        running.cancel()
        await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # otherwise asyncio reports it as never retrieved
    if stuck.error is not None and not isinstance(stuck.error, BudgetUsedUp):
        raise stuck.error
    return None
