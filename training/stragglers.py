"""Groups that go on without their last rollouts.

Where one rollout of a group hangs, all others wait for it, and with them the step. With a quorum a group waits for so
many of its rollouts, then some seconds more, and cuts the rest off: they are cancelled at what they have committed,
which stays on record; `hrm-agent fork THREAD --run --policy RUN/model` goes on from there. They are no failures of the
policy, and take no part in the step.

Which rollouts were cut off is written as a verdict before they are cancelled. A step that is taken again finds it, and
comes to the same groups, even if one of them has ended since.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from functools import cached_property
from typing import Any

from hrm_agent.runtime.episode import Episode
from hrm_agent.runtime.execution.run_group import run_group
from hrm_agent.store import RunStore
from hrm_agent.training.config_parts import RolloutPart
from hrm_agent.training.eligibility import needs_second_attempt
from hrm_agent.training.rollout import Attempts, second_attempt
from hrm_agent.trajectory import DropReason, Overlay, Verdict

__all__ = ["Stragglers", "quorum_of"]

Attempt = Callable[[Episode], Coroutine[Any, Any, Attempts]]


def quorum_of(rollouts: int, share: float) -> int:
    """How many of a group's rollouts have to end before the others are given a deadline."""
    return math.ceil(round(share * rollouts, 9))  # 0.28 * 25 is a little more than 7


class Stragglers:
    """Runs the groups of one run's steps, each until it has ended or is cut off."""

    def __init__(self, store: RunStore, run_id: str) -> None:
        self._store, self._run_id = store, run_id

    @cached_property
    def _cut_off(self) -> set[str]:
        """Trajectories that are cut off, by what is on record."""
        verdicts = self._store.journal.overlays(self._run_id)
        return {verdict.trajectory_id for verdict in verdicts if verdict.drop_reason is DropReason.CUT_OFF}

    async def run_group(
        self, episodes: Sequence[Episode], attempt: Attempt, *, step: int, options: RolloutPart
    ) -> list[Attempts]:
        """The rollouts that have ended, in the order of `episodes`. An error of one cancels the rest, and is raised."""
        if options.group_quorum == 1:
            return await run_group(episodes, attempt)
        running = {
            asyncio.create_task(attempt(episode)): episode
            for episode in episodes
            if episode.trajectory_id not in self._cut_off
        }
        try:
            late = await _late(set(running), quorum_of(len(episodes), options.group_quorum), options.group_deadline)
            cut = [task for task in late if not self._has_ended(running[task])]
            if cut:
                self._cut(
                    [running[task] for task in cut], step, f"{len(running) - len(cut)} of {len(episodes)}", options
                )
            in_time = [task for task in running if task not in cut]
            await asyncio.gather(*in_time)
        finally:
            left = [task for task in running if not task.done()]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        return [task.result() for task in in_time]

    def _has_ended(self, episode: Episode) -> bool:
        """Whether all of a rollout is on record, though who waits for it does not know yet: it is read back, say."""
        journal = self._store.journal
        if not journal.is_over(episode.trajectory_id):
            return False
        second = second_attempt(episode).trajectory_id
        return not needs_second_attempt(journal.trajectory(episode.trajectory_id)) or journal.is_over(second)

    def _cut(self, episodes: Sequence[Episode], step: int, ended: str, options: RolloutPart) -> None:
        """Record a verdict for each rollout that is cut off."""
        reason = f"cut off: {ended} rollouts of its group had ended, and group_deadline = {options.group_deadline:g} s "
        reason += "was over"
        self._store.journal.write_overlays(
            [
                Overlay(
                    run_id=self._run_id,
                    step=step,
                    trajectory_id=episode.trajectory_id,
                    group_id=episode.group_id,
                    reward=0.0,
                    verdict=Verdict.DROPPED,
                    reason=reason,
                    drop_reason=DropReason.CUT_OFF,
                    penalty_error=0.0,
                    penalty_format=0.0,
                )
                for episode in episodes
            ]
        )
        self._cut_off.update(episode.trajectory_id for episode in episodes)


async def _late(running: set[asyncio.Task[Attempts]], quorum: int, seconds: float) -> set[asyncio.Task[Attempts]]:
    """Those that have not ended `seconds` after `quorum` of them have. Raises what one of them raises."""
    loop, count, ends = asyncio.get_running_loop(), len(running), math.inf
    pending = running
    while pending and loop.time() < ends:
        timeout = None if math.isinf(ends) else ends - loop.time()
        ended, pending = await asyncio.wait(pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
        if math.isinf(ends) and count - len(pending) >= quorum:
            ends = loop.time() + seconds
    return pending
