"""Runs whose requests are held to a budget."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import partial

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

__all__ = ["MeteredRecording", "Refusal", "run_metered"]


@dataclass(slots=True)
class Refusal:
    """Signal that a run cannot go on, since a request of it was refused.

    The refusal is not raised in the graph, which could catch it and go on with another state. The
    request waits, and the run is cancelled from outside, as by a kill. A request that cannot wait
    ends as in a cancelled task.
    """

    loop: asyncio.AbstractEventLoop
    event: asyncio.Event = field(default_factory=asyncio.Event)
    error: HrmError | None = None
    """Error by which the request was refused."""

    def report(self) -> None:
        self.loop.call_soon_threadsafe(self.event.set)


class MeteredRecording(Recording):
    """Recording whose requests are reserved in a `Meter` before they are sent."""

    metered = True

    def __init__(
        self,
        journal: Journal,
        seed: int | None,
        inherited: Collection[str],
        *,
        meter: Meter,
        refusal: Refusal,
    ) -> None:
        super().__init__(journal, seed, inherited)
        self._meter = meter
        self._refusal = refusal
        self._open_requests = set[str]()

    def may_ask(self, request: RequestSize) -> bool:
        if self._closed:  # a node in a thread cannot be cancelled
            raise BudgetUsedUp("A request was refused.")
        try:
            accepted = self._meter.reserve(request)
            if not accepted and not request.can_wait:
                raise ConfigError(
                    f"A request to {request.model} has to wait for others, but it blocks the event"
                    " loop: an async function calls the model synchronously.",
                    "Write `await policy().ainvoke(...)` in async functions of the graph, or limit"
                    " the rollouts: --budget 200rollouts.",
                )
        except HrmError as error:
            self._refusal.error = self._refusal.error or error
            if not self._open_requests:
                self._refusal.report()
            if request.by_policy and request.can_wait:
                return False
            # A node that catches exceptions does not catch this one, as in a cancelled task. If it
            # does nevertheless, the run is not stored as ended.
            self.broken = self.broken or error
            raise asyncio.CancelledError from error
        if accepted:
            self._open_requests.add(request.call_id)
        return accepted

    def write_call(self, call: Call, sent: Collection[object] = ()) -> Call:
        written = super().write_call(call, list(sent))
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


async def run_metered(runner: EpisodeRunner, episode: Episode, meter: Meter) -> Trajectory | None:
    """Run, resume or read back an episode (None if the budget does not suffice). A run that could
    not go on stays on record as it is, and is resumed by the next call.

    Raises `HrmError` if a request was refused for another reason.
    """
    journal = runner.store.journal
    if journal.is_over(episode.trajectory_id):
        return journal.trajectory(episode.trajectory_id)
    if meter.closed:
        return None
    refusal = Refusal(asyncio.get_running_loop())
    record = partial(MeteredRecording, meter=meter, refusal=refusal)
    running = asyncio.create_task(replace(runner, record=record).run(episode))
    waiting = asyncio.create_task(refusal.event.wait())
    try:
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if running.done() and refusal.error is None:
            return running.result()
    finally:
        waiting.cancel()
        running.cancel()
        await asyncio.wait({running})
    if refusal.error is not None and not isinstance(refusal.error, BudgetUsedUp):
        raise refusal.error
    return None
