"""Blame: the step of a run that lost it, by forks of its moments.

The value of a moment is the expected outcome of a run that goes on from it, estimated by the mean
outcome of forks. Each has a seed of its own. Along a run the value falls where a decision made the
right answer less likely: the step with the largest fall is the one that lost the run. The end of a
run is worth its outcome.

    value of a moment            mean outcome of its forks, with Wilson's interval
    difference made by a step    value of the moment after it, less that of the moment before it

A difference includes the luck of its forks. A fall is *clear* if the intervals of both values do
not overlap. The values are those under the policy that samples the forks. Forks are recorded beside
the run, as a run of their own (`RUN/blame`), so that a repeated or resumed call reads them back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from statistics import fmean
from typing import Any

from hrm_agent.basics.intervals import wilson_interval
from hrm_agent.errors import RunError
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.training.rollout.eligibility import fault_of
from hrm_agent.training.rollout.scoring import Score
from hrm_agent.training.select.roc import outcome_of
from hrm_agent.trajectory import ForkRef, Trajectory, content_hash, derive_seed
from hrm_agent.trajectory.decisions import Decision, blame_run_id, decisions

__all__ = ["Blame", "BlamedRun", "Fall", "MomentValue", "blame"]

Verifier = Callable[[str], float | Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class MomentValue:
    """Value of the moment before a decision."""

    index: str
    """Index of the moment, as `hrm-agent history` lists it."""
    nodes: str
    """Nodes that decided, as in `plan` or `solve x2`."""
    value: float
    """Mean outcome of the forks (nan if none can be judged)."""
    low: float
    """Lower end of the 95 % interval of the value."""
    high: float
    """Upper end of the interval."""
    forks: int
    """Number of forks that can be judged."""


@dataclass(frozen=True, slots=True)
class Fall:
    """Difference made by one decision, below 0."""

    moment: MomentValue
    """Moment before the decision."""
    after: float
    """Value of the next moment that has one, or the outcome of the run."""
    clear: bool
    """True if the intervals before and after do not overlap."""


@dataclass(frozen=True, slots=True)
class Blame:
    """Values along one run."""

    thread: str
    """Thread of the run."""
    outcome: float
    """Outcome of the run."""
    moments: tuple[MomentValue, ...]
    """Values before each decision, in order."""
    not_judged: Mapping[str, int]
    """Reason -> number of forks that could not be judged."""

    @property
    def differences(self) -> list[float]:
        """Difference that each decision made, in the order of `moments`. A moment without a value
        gives nan, and the difference before it reaches to the next value.
        """
        found = list[float]()
        following = self.outcome
        for moment in reversed(self.moments):
            found.append(following - moment.value)
            following = following if isnan(moment.value) else moment.value
        return found[::-1]

    @property
    def lost_at(self) -> Fall | None:
        """Largest fall (None if the value never falls)."""
        falls = [
            (difference, number)
            for number, difference in enumerate(self.differences)
            if difference < 0
        ]
        if not falls:
            return None
        difference, number = min(falls)
        before = self.moments[number]
        later = [each.high for each in self.moments[number + 1 :] if not isnan(each.value)]
        return Fall(before, before.value + difference, clear=[*later, self.outcome][0] < before.low)


@dataclass(frozen=True, slots=True)
class BlamedRun:
    """Run to value, with what its forks need."""

    trajectory: Trajectory
    """Recorded run of one turn, which has ended and was judged."""
    moments: Mapping[str, str]
    """Index of each moment on the lineage of the run, by its checkpoint."""
    context: Mapping[str, Any]
    """LangGraph's run context of the run."""
    verify: Verifier | None = None
    """Verifier of the final text (None: a rubric scores the forks)."""
    verify_run: Callable[[Trajectory], float | Mapping[str, float] | None] | None = None
    """Verifier of the whole run, in place of `verify`."""

    @property
    def decisions(self) -> list[Decision]:
        """Decisions at moments of the lineage."""
        return [each for each in decisions(self.trajectory) if each.checkpoint_id in self.moments]


async def blame(
    runner: EpisodeRunner,
    runs: Sequence[BlamedRun],
    score: Score,
    *,
    forks: int = 8,
    seed: int = 0,
    key: str = "",
    concurrency: int = 64,
    on_done: Callable[[Trajectory], object] | None = None,
) -> list[Blame]:
    """Values along each of the `runs`, in their order.

    `forks`: number of forks of each moment. `key`: facts on which the outcome of a fork depends
    beside the name of the policy: its weights, the sampling parameters, the rubric. Forks on record
    under another key are not used. Raises `RunError` if no fork can be judged.
    """
    named = content_hash("blame", runner.policy, key, str(seed))[:8]
    episodes = [
        _fork(run, decision, index, seed, named)
        for run in runs
        for decision in run.decisions
        for index in range(forks)
    ]
    ended = await runner.run_all(episodes, concurrency=concurrency, on_done=on_done)
    scored = [each[-1] for each in await score([(each,) for each in ended])]
    outcomes: dict[str, list[float]] = {each.group_id: [] for each in scored}
    faults: dict[str, Counter[str]] = {each.group_id: Counter() for each in scored}
    for each in scored:
        fault = fault_of(each)
        if fault is None:
            outcomes[each.group_id].append(outcome_of(each))
        else:
            faults[each.group_id][fault[1]] += 1
    if not any(outcomes.values()):
        every = sum(faults.values(), Counter[str]())
        why = every.most_common(1)[0][0] if every else "there was none"
        raise RunError(
            f"None of {len(scored)} forks could be judged: {why}",
            f"`hrm-agent history --store {runner.store.url}` lists them.",
        )
    found = list[Blame]()
    for run in runs:
        groups = [_group(run, decision, named) for decision in run.decisions]
        values = [
            _value(run, decision, outcomes[group])
            for decision, group in zip(run.decisions, groups, strict=True)
        ]
        lost = sum((faults[group] for group in groups), Counter[str]())
        found.append(
            Blame(run.trajectory.thread_id, outcome_of(run.trajectory), tuple(values), lost)
        )
    return found


def _value(run: BlamedRun, decision: Decision, outcomes: Sequence[float]) -> MomentValue:
    low, high = wilson_interval(sum(outcomes), len(outcomes))
    value = fmean(outcomes) if outcomes else float("nan")
    index = run.moments[decision.checkpoint_id]
    return MomentValue(index, decision.nodes, value, low, high, forks=len(outcomes))


def _group(run: BlamedRun, decision: Decision, named: str) -> str:
    index = run.moments[decision.checkpoint_id]
    return f"{run.trajectory.thread_id}/blame-{named}/{index}"


def _fork(run: BlamedRun, decision: Decision, index: int, seed: int, named: str) -> Episode:
    origin = run.trajectory
    group = _group(run, decision, named)
    return Episode(
        task=origin.task,
        thread_id=f"{group}/{index}",
        graph=origin.graph,
        run_id=blame_run_id(origin.run_id),
        group_id=group,
        sample_index=index,
        seed=derive_seed(seed, group, index),
        context=run.context,
        verify=run.verify,
        verify_run=run.verify_run,
        forked_from=ForkRef(trajectory_id=origin.id, checkpoint_id=decision.checkpoint_id),
    )
