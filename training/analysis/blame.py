"""Blame: the step of a run that lost it, by forks of its moments.

The value of a moment is the expected outcome of a run that goes on from it, estimated by the mean
outcome of forks. Each has a seed of its own. Along a run the value falls where a decision made the
right answer less likely: the step with the largest fall is the one that lost the run. The end of a
run is worth its outcome.

    value of a moment            mean outcome of its forks, with Wilson's interval
    difference made by a step    value of the moment after it, less that of the moment before it

A difference includes the luck of its forks, so that a small one says little. The values are those
under the policy that samples the forks. Forks are recorded beside the run, as a run of their own
(`RUN/blame`), so that a repeated or resumed call reads them back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from hrm_agent.basics.intervals import wilson_interval
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.time_travel.decisions import Decision, decisions
from hrm_agent.runtime.time_travel.history import History
from hrm_agent.training.rollout.eligibility import fault_of
from hrm_agent.training.rollout.scoring import Score
from hrm_agent.training.select.roc import outcome_of
from hrm_agent.trajectory import ForkRef, Trajectory, content_hash, derive_seed

__all__ = ["Blame", "BlamedRun", "MomentValue", "blame", "blame_run_id"]

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
class Blame:
    """Values along one run."""

    thread: str
    """Thread of the run."""
    outcome: float
    """Outcome of the run."""
    moments: tuple[MomentValue, ...]
    """Values before each decision, in order."""

    @property
    def differences(self) -> list[float]:
        """Difference that each decision made, in the order of `moments`."""
        values = [*(moment.value for moment in self.moments), self.outcome]
        return [after - before for before, after in pairwise(values)]

    @property
    def lost_at(self) -> MomentValue | None:
        """Moment before the decision with the largest fall (None if the value never falls)."""
        falls = [
            (difference, number)
            for number, difference in enumerate(self.differences)
            if difference < 0
        ]
        return self.moments[min(falls)[1]] if falls else None


@dataclass(frozen=True, slots=True)
class BlamedRun:
    """Run to value, with what its forks need."""

    trajectory: Trajectory
    """Recorded run of one turn, which has ended."""
    history: History
    """Its moments."""
    context: Mapping[str, Any]
    """LangGraph's run context of the run."""
    verify: Verifier | None
    """Verifier of the final text (None: a rubric scores the forks)."""
    verify_run: Callable[[Trajectory], float | Mapping[str, float]] | None = None
    """Verifier of the whole run, in place of `verify`."""

    @property
    def decisions(self) -> list[Decision]:
        """Decisions on the lineage of the newest moment."""
        known = {moment.checkpoint_id for moment in self.history.lineage()}
        return [each for each in decisions(self.trajectory) if each.checkpoint_id in known]


def blame_run_id(run_id: str) -> str:
    """Id of the run under which the forks of a run are recorded."""
    return f"{run_id}/blame" if run_id else "blame"


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
    beside the policy, such as the sampling parameters; forks on record under another key or policy
    are not used.
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
    outcomes: dict[str, list[float]] = {}
    for each in scored:
        found = outcomes.setdefault(each.group_id, [])
        if fault_of(each) is None:
            found.append(outcome_of(each))
    return [
        Blame(
            run.trajectory.thread_id,
            outcome_of(run.trajectory),
            tuple(
                _value(run, decision, outcomes[_group(run, decision, named)])
                for decision in run.decisions
            ),
        )
        for run in runs
    ]


def _value(run: BlamedRun, decision: Decision, outcomes: Sequence[float]) -> MomentValue:
    low, high = wilson_interval(sum(outcomes), len(outcomes))
    value = fmean(outcomes) if outcomes else float("nan")
    return MomentValue(_index(run, decision), decision.nodes, value, low, high, forks=len(outcomes))


def _index(run: BlamedRun, decision: Decision) -> str:
    return next(
        moment.index
        for moment in run.history.moments
        if moment.checkpoint_id == decision.checkpoint_id
    )


def _group(run: BlamedRun, decision: Decision, named: str) -> str:
    return f"{run.trajectory.thread_id}/blame-{named}/{_index(run, decision)}"


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
