"""Statistics over trajectories: pure functions, from stored records alone.

    pass@1          mean over problems of the share of correct samples of the problem
    its interval    samples of one problem are not independent, so *problems* are resampled (a bootstrap with a seed);
                    with one sample a problem, Wilson's interval, right near 0 and 1 where a bootstrap has no width
    tool errors     the share of *correct* trajectories in which a tool call failed by the policy's doing: what GRPO-RoC
                    is about, and what accuracy does not show

Every trajectory counts. A run that failed or was truncated is a wrong answer, and `statuses` says how many there were:
a score over the runs that happened to end would flatter whoever ends few. Only runs that are still under way are left
out.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from hrm_agent.trajectory import Overlay, RunStatus, Trajectory, Verdict
from training.roc import is_positive, outcome_reward

__all__ = ["Evaluation", "evaluate", "group_metrics", "wilson_interval"]

_Z95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a policy did on a set of problems."""

    problems: int
    trajectories: int
    """Ended ones, of any status."""
    pass_at_1: float
    """In [0, 1]; nan without a trajectory."""
    interval: tuple[float, float]
    """95 % confidence interval of `pass_at_1`."""
    correct_with_tool_error: float
    """Share of correct trajectories with a tool call that failed by the policy's doing; nan if none is correct."""
    mean_sampled_tokens: float
    mean_tool_calls: float
    statuses: dict[str, int] = field(default_factory=dict[str, int])
    """Number of trajectories by run status, those under way among them."""


def evaluate(trajectories: Iterable[Trajectory], *, seed: int = 0, resamples: int = 2000) -> Evaluation:
    """Statistics of `trajectories`, in any order."""
    everything = list(trajectories)
    ended = [t for t in everything if t.status is not RunStatus.RUNNING]
    scores: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for trajectory in ended:
        scores[trajectory.task.family, trajectory.task.id].append(float(_correct(trajectory)))
    # Sorted by problem: the interval must not depend on which rollout was finished first.
    share_P = [fmean(scores[problem]) for problem in sorted(scores)]
    single = all(len(samples) == 1 for samples in scores.values())
    return Evaluation(
        problems=len(share_P),
        trajectories=len(ended),
        pass_at_1=_mean(share_P),
        interval=wilson_interval(sum(share_P), len(share_P)) if single else _bootstrap(share_P, seed, resamples),
        correct_with_tool_error=_mean([float(_has_tool_error(t)) for t in ended if _correct(t)]),
        mean_sampled_tokens=_mean([t.sampled_tokens for t in ended]),
        mean_tool_calls=_mean([len(t.own_tool_calls) for t in ended]),
        statuses=dict(sorted(Counter(t.status.value for t in everything).items())),
    )


def group_metrics(rollouts: Sequence[Trajectory], overlays: Iterable[Overlay]) -> dict[str, float]:
    """A step's metrics: of all rollouts as sampled (`rollout/`), and of what was made of them (`select/`)."""
    judged = list(overlays)
    kept = {o.trajectory_id for o in judged if o.verdict is Verdict.KEPT}
    trained = [t for t in rollouts if t.id in kept]
    shares: dict[str, Callable[[Trajectory], bool]] = {
        "rollout/truncated": lambda t: t.status is RunStatus.TRUNCATED,
        "rollout/failed": lambda t: t.status in (RunStatus.FAILED, RunStatus.ABORTED),
        "rollout/correct": _correct,
    }
    groups = {o.group_id for o in judged}
    rejected = {o.group_id for o in judged if o.verdict is Verdict.GROUP_REJECTED}
    return {
        **{name: _mean([float(holds(t)) for t in rollouts]) for name, holds in shares.items()},
        "rollout/count": float(len(rollouts)),
        "rollout/correct_with_tool_error": _tool_error_share(rollouts),
        "rollout/sampled_tokens": _mean([t.sampled_tokens for t in rollouts]),
        "rollout/tool_calls": _mean([len(t.own_tool_calls) for t in rollouts]),
        "select/kept": float(len(kept)),
        "select/correct": _mean([float(_correct(t)) for t in trained]),
        "select/correct_with_tool_error": _tool_error_share(trained),
        "select/groups_rejected": len(rejected) / len(groups) if groups else math.nan,
    }


def wilson_interval(successes: float, trials: int, z: float = _Z95) -> tuple[float, float]:
    """Wilson's score interval of a proportion; (0, 1) without a trial."""
    if trials == 0:
        return 0.0, 1.0
    share = successes / trials
    scale = 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / scale
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / scale
    return max(0.0, middle - half), min(1.0, middle + half)


def _bootstrap(share_P: Sequence[float], seed: int, resamples: int) -> tuple[float, float]:
    """Percentile interval of the mean over problems drawn with replacement."""
    rng = random.Random(seed)
    means = sorted(fmean(rng.choices(share_P, k=len(share_P))) for _ in range(resamples))
    return means[int(0.025 * resamples)], means[min(resamples - 1, int(0.975 * resamples))]


def _correct(trajectory: Trajectory) -> bool:
    return is_positive(outcome_reward(trajectory))


def _has_tool_error(trajectory: Trajectory) -> bool:
    return any(call.status is not None and call.status.is_policy_failure for call in trajectory.own_tool_calls)


def _tool_error_share(trajectories: Iterable[Trajectory]) -> float:
    return _mean([float(_has_tool_error(t)) for t in trajectories if _correct(t)])


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan
