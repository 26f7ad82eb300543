"""Carries over rollouts that were cut off: they continue in the next step, with that step's
weights, and are trained on in it.

A rollout resumes as after a kill. Its calls on record are not sampled again, and new calls use the
weights of the later step. Each call records the version of the weights that sampled its tokens. The
loss is corrected for tokens of older weights, as with `versions_behind`.

A carried rollout belongs to the group in which it began, and which was trained on without it. When
it has ended, the whole group is judged once more, with the random draw of the group's step. So the
rollout gets the verdict and advantage that it would have had if the step had waited. Only the
carried rollouts are trained on, and the verdicts of the others do not change. Thus the duration of
a rollout does not change its chance of being trained on.

A rollout is carried only once: if it has not ended by the deadline of the later step, it is
dropped. No rollout is carried into another stage, since stages differ in tasks and lengths.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from hrm_agent.errors import RunError
from hrm_agent.runtime.episode import Episode
from hrm_agent.store import RunStore
from hrm_agent.training.rollout.eligibility import SECOND_ATTEMPT, needs_second_attempt
from hrm_agent.training.rollout.groups import Collector
from hrm_agent.training.rollout.rollout import Attempts
from hrm_agent.training.rollout.scoring import Score
from hrm_agent.training.rollout.source import StepPlan, TaskSource
from hrm_agent.training.select.verdicts import credited_overlays, judge_group
from hrm_agent.trajectory import DropReason, Overlay, Trajectory, Verdict

__all__ = ["Carried", "CarryOver"]


@dataclass(frozen=True, slots=True)
class Carried:
    """Results of the rollouts that a step has taken over from the previous step."""

    begun: int = 0
    """Number of rollouts taken over."""
    attempts: Sequence[Attempts] = ()
    """Scored attempts of the rollouts that ended in time."""
    overlays: Sequence[Overlay] = ()
    """Verdicts of these attempts, with advantages."""

    @property
    def rollouts(self) -> list[Trajectory]:
        """Rollouts that ended in time."""
        return [each[-1] for each in self.attempts]

    @property
    def metrics(self) -> dict[str, float]:
        kept = sum(overlay.verdict is Verdict.KEPT for overlay in self.overlays)
        return {
            "rollout/carried_over": float(self.begun),
            "rollout/carried_ended": float(len(self.attempts)),
            "select/carried": float(kept),
        }


class CarryOver:
    """Continues the rollouts that the previous step of a run has cut off."""

    def __init__(
        self,
        store: RunStore,
        run_id: str,
        folder: Path,
        collector: Collector,
        source: TaskSource,
        score: Score,
    ) -> None:
        self._store = store
        self._run_id = run_id
        self._folder = folder
        self._collector = collector
        self._source = source
        self._score = score

    @asynccontextmanager
    async def beside(self, plan: StepPlan) -> AsyncGenerator[Callable[[], Awaitable[Carried]]]:
        """Run the carried rollouts beside the groups of a step. Yields a function, to be called
        when these groups have ended, that returns the results.
        """
        episodes = self._episodes(plan)
        async with self._collector.carried(episodes, plan.step, plan.config) as ended:

            async def carried() -> Carried:
                attempts = await self._score(await ended())
                return Carried(len(episodes), attempts, self._judged(attempts, plan))

            yield carried

    def _episodes(self, plan: StepPlan) -> list[Episode]:
        """Rollouts that the previous step has cut off, ordered by group and sample."""
        if not plan.config.rollout.carry_over or plan.step == self._source.progress.began_at:
            return []
        before = plan.step - 1
        cut = dict[str, set[str]]()
        for overlay in self._collector.cut_off_in(before):
            cut.setdefault(overlay.group_id, set()).add(overlay.trajectory_id)
        found: list[Episode] = []
        for place, group_id in sorted(
            (int(group_id.rpartition("/")[2]), group_id) for group_id in cut
        ):
            # The task is read from the group, since a rollout that had not started is not on
            # record, but others of its group are.
            known = self._store.journal.headers("group_id = ?", (group_id,))[0].task
            task = self._source.drawn(known.family, known.id)
            if task is None:
                raise RunError(
                    f"Task {known.id!r}, of which rollouts in {self._folder} are to go on, is not"
                    " drawn any more.",
                    "The tasks have changed since the run began: start a new run in another"
                    " folder.",
                )
            group = self._collector.episodes(f"step-{before}", plan.config, place, task)
            found += [episode for episode in group if episode.trajectory_id in cut[group_id]]
        return found

    def _judged(self, carried: Sequence[Attempts], plan: StepPlan) -> list[Overlay]:
        """Verdicts for the carried attempts, judged with all ended rollouts of their group."""
        if not carried:
            return []
        before = plan.step - 1
        others = [
            overlay
            for overlay in self._store.journal.overlays(self._run_id, before)
            if overlay.carried_from is None and overlay.drop_reason is not DropReason.CUT_OFF
        ]
        groups: dict[str, list[Attempts]] = {}
        for attempts in carried:
            groups.setdefault(attempts[-1].group_id, []).append(attempts)
        for overlay in others:
            if overlay.group_id in groups:
                member = self._store.journal.trajectory(overlay.trajectory_id, requests=False)
                if member.thread_id.endswith(SECOND_ATTEMPT) or not needs_second_attempt(member):
                    groups[overlay.group_id].append((member,))
        judged = [
            each
            for group in groups.values()
            for each in judge_group(group, before, self._run_id, plan.config)
        ]
        rollouts = [attempts[-1] for group in groups.values() for attempts in group]
        beside = [overlay for overlay in others if overlay.group_id not in groups]
        ids = {trajectory.id for attempts in carried for trajectory in attempts}
        found: list[Overlay] = []
        for overlay in credited_overlays(rollouts, judged, plan.config, beside):
            if overlay.trajectory_id in ids:
                reason = f"{overlay.reason}; carried over from step {before}"
                moved = {"step": plan.step, "carried_from": before, "reason": reason}
                found.append(overlay.model_copy(update=moved))
        return found
