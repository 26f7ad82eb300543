"""Groups that end without their last rollouts.

If one rollout of a group hangs, the whole step waits for it. With a quorum, a group waits for that
share of its rollouts, then for some seconds more, and cuts off the remaining rollouts. A rollout
that is cut off is cancelled; what it has committed stays on record, and `hrm-agent fork THREAD
--run --policy RUN/model` can continue from there. It does not count as a failure of the policy, and
takes no part in the step. If rollouts are carried over, it continues in the next step, at most
until the deadline after that step's groups.

Verdicts on the rollouts that are cut off are written before these are cancelled. A repeated step
finds the verdicts and gets the same groups, even if one of the rollouts has ended since. The
verdict on a rollout that was carried over has its result in the later step, and the earlier step in
which it was cut off (`Overlay.carried_from`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from functools import cached_property, partial
from typing import Any

from hrm_agent.runtime.episode import Episode
from hrm_agent.runtime.execution.run_group import run_group
from hrm_agent.store import RunStore
from hrm_agent.training.config.parts import RolloutPart
from hrm_agent.training.rollout.eligibility import needs_second_attempt
from hrm_agent.training.rollout.rollout import Attempts, second_attempt
from hrm_agent.trajectory import DropReason, Overlay, Verdict

__all__ = ["Stragglers", "quorum_of"]

Attempt = Callable[[Episode], Coroutine[Any, Any, Attempts]]
Running = asyncio.Task[Attempts]


def quorum_of(rollouts: int, share: float) -> int:
    """Number of a group's rollouts that have to end before the others get a deadline."""
    return math.ceil(round(share * rollouts, 9))  # 0.28 * 25 is a little more than 7


class Stragglers:
    """Runs the groups of a run's steps. Each rollout runs until it has ended or is cut off."""

    def __init__(self, store: RunStore, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    @cached_property
    def _cut_off(self) -> dict[str, Overlay]:
        """Recorded verdicts on rollouts that were ever cut off, by trajectory id."""
        found = self._store.journal.overlays(self._run_id)
        return {
            each.trajectory_id: each
            for each in found
            if _is_cut_off(each) or each.carried_from is not None
        }

    def cut_off_in(self, step: int) -> list[Overlay]:
        """Verdicts on the rollouts of `step` that were cut off in it, even if they were carried
        over later.
        """
        return [
            each
            for each in self._cut_off.values()
            if (each.step if each.carried_from is None else each.carried_from) == step
        ]

    async def run_group(
        self, episodes: Sequence[Episode], attempt: Attempt, *, step: int, options: RolloutPart
    ) -> list[Attempts]:
        """Return the rollouts that end in time, in the order of `episodes`. If a rollout raises an
        error, the others are cancelled and the error is raised.
        """
        if options.group_quorum == 1:
            return await run_group(episodes, attempt)
        quorum = quorum_of(len(episodes), options.group_quorum)
        deadline = options.group_deadline

        def reason(ended: int) -> str:
            said = (
                f"cut off: {ended} of {len(episodes)} rollouts of its group had ended, and"
                " group_deadline = "
            )
            return f"{said}{deadline:g} s was over"

        begun = [episode for episode in episodes if episode.trajectory_id not in self._cut_off]
        return await self._in_time(
            begun, attempt, lambda running: _late(running, quorum, deadline), reason, step
        )

    async def run_carried(
        self,
        episodes: Sequence[Episode],
        attempt: Attempt,
        others_over: asyncio.Event,
        *,
        step: int,
        options: RolloutPart,
    ) -> list[Attempts]:
        """Return the rollouts cut off by the previous step that end in `step`, in the order of
        `episodes`.

        `others_over` is set when all groups of the step have ended. Rollouts that have not ended by
        the deadline after that are cut off and not carried over again.
        """
        deadline = options.group_deadline

        def reason(ended: int) -> str:
            del ended
            return (
                f"cut off again: group_deadline = {deadline:g} s after the groups of step {step}"
                " was over"
            )

        begun = [
            episode
            for episode in episodes
            if (known := self._cut_off[episode.trajectory_id]).carried_from is None
            or not _is_cut_off(known)
        ]
        late = partial(_late_after, others_over, deadline)
        return await self._in_time(begun, attempt, late, reason, step, carried_from=step - 1)

    async def _in_time(
        self,
        episodes: Sequence[Episode],
        attempt: Attempt,
        late: Callable[[set[Running]], Coroutine[Any, Any, set[Running]]],
        reason: Callable[[int], str],
        step: int,
        carried_from: int | None = None,
    ) -> list[Attempts]:
        """Return the rollouts that end in time. `late` waits, and returns the tasks that still run.

        `reason`: maps the number of ended rollouts to the reason for cutting off the others.
        """
        running = {asyncio.create_task(attempt(episode)): episode for episode in episodes}
        in_time = list[Running]()
        try:
            cut = [task for task in await late(set(running)) if not self._has_ended(running[task])]
            if cut:
                why = reason(len(running) - len(cut))
                verdicts = [
                    Overlay(
                        run_id=self._run_id,
                        step=step,
                        carried_from=carried_from,
                        trajectory_id=running[task].trajectory_id,
                        group_id=running[task].group_id,
                        reward=0.0,
                        verdict=Verdict.DROPPED,
                        reason=why,
                        drop_reason=DropReason.CUT_OFF,
                        penalty_error=0.0,
                        penalty_format=0.0,
                    )
                    for task in cut
                ]
                self._store.journal.write_overlays(verdicts)
                self._cut_off.update((verdict.trajectory_id, verdict) for verdict in verdicts)
            in_time = [task for task in running if task not in cut]
            await asyncio.gather(*in_time)
        finally:
            left = [task for task in running if not task.done()]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        return [task.result() for task in in_time]

    def _has_ended(self, episode: Episode) -> bool:
        """True if a rollout is completely on record, even if its task has not returned yet."""
        journal = self._store.journal
        if not journal.is_over(episode.trajectory_id):
            return False
        second = second_attempt(episode).trajectory_id
        return not needs_second_attempt(
            journal.trajectory(episode.trajectory_id)
        ) or journal.is_over(second)


def _is_cut_off(verdict: Overlay) -> bool:
    return verdict.drop_reason is DropReason.CUT_OFF


async def _late_after(
    others_over: asyncio.Event, seconds: float, running: set[Running]
) -> set[Running]:
    """Wait until `seconds` after the other groups have ended, and return the tasks that still run.
    Raises the error of any task.
    """
    await others_over.wait()
    if not running:
        return set()
    ended, pending = await asyncio.wait(
        running, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION
    )
    for task in ended:
        task.result()
    return pending


async def _late(running: set[Running], quorum: int, seconds: float) -> set[Running]:
    """Wait until `seconds` after `quorum` tasks have ended, and return the tasks that still run.
    Raises the error of any task.
    """
    loop = asyncio.get_running_loop()
    count = len(running)
    ends = math.inf
    pending = running
    while pending and loop.time() < ends:
        timeout = None if math.isinf(ends) else ends - loop.time()
        ended, pending = await asyncio.wait(
            pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
        )
        for task in ended:
            task.result()
        if math.isinf(ends) and count - len(pending) >= quorum:
            ends = loop.time() + seconds
    return pending
