"""Statistics over trajectories: pure functions of stored records.

    pass@k, majority@k    means over problems; `hrm_agent.training.evaluation.statistics` has the
                          method and its sources
    intervals             *problems* are resampled (a bootstrap with a seed); with one sample a
                          problem, Wilson's
    tool errors           the share of tool calls that failed through the policy's fault; and the
                          share of *correct* trajectories with such a call, which GRPO-RoC reduces
                          and accuracy does not show

Every ended trajectory counts, except completed trajectories that nothing has scored
(`without_score`). A run that failed or was truncated counts as a wrong answer, since a score over
completed runs only would flatter a policy that completes few. `statuses` has the numbers of such
runs. Runs in progress are left out.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from hrm_agent.basics.intervals import (
    Estimate,
    bootstrapped,
    bootstrapped_share,
    wilson_interval,
)
from hrm_agent.training.evaluation.prices import Prices, cost_of
from hrm_agent.training.evaluation.samples import Effort, Problem, Sample, samples_of
from hrm_agent.training.evaluation.statistics import (
    AnswerTally,
    majority_curve,
    pass_curve,
    shown_ks,
)
from hrm_agent.training.evaluation.tables import NOT_REPORTED, interval_text, plain_text
from hrm_agent.training.select.roc import is_positive, outcome_of
from hrm_agent.trajectory import Overlay, RunStatus, Trajectory, Verdict

__all__ = [
    "Evaluation",
    "FamilyScore",
    "Seconds",
    "evaluate",
    "evaluate_samples",
    "group_metrics",
    "summary",
]

_PER = " per "
"""Separator in the name of a number that is reported as a share of another."""


@dataclass(frozen=True, slots=True)
class FamilyScore:
    """Score of one family of a mixture."""

    problems: int
    """Number of problems with an ended trajectory."""
    trajectories: int
    """Number of ended trajectories, of any status."""
    pass_at_1: Estimate
    """Mean over problems of the share of right samples, in [0, 1]."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """Time of an evaluation, in seconds."""

    wall: float
    """Time from the first start to the last end, pauses between sessions included (nan without a
    trajectory).
    """
    trajectory: float
    """Mean time of a trajectory from start to end. With many in parallel it is mostly waiting."""
    model: float
    """Mean over trajectories of the total time of model calls."""
    tool: float
    """Mean over trajectories of the total time of tool calls."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Results of a policy on a set of problems."""

    problems: int
    """Number of problems with an ended trajectory."""
    trajectories: int
    """Number of ended trajectories, of any status. A choice among candidate runs counts once, and
    the candidates themselves do not count.
    """
    without_score: int
    """Number of completed trajectories that nothing has scored. They are neither right nor wrong,
    and are left out of everything else.
    """
    samples: int
    """Smallest number of trajectories that any problem has. It is the largest k of `pass_at` and
    `majority_at`.
    """
    pass_at_1: float
    """Mean over problems of the share of right samples, in [0, 1] (nan without a trajectory)."""
    interval: tuple[float, float]
    """95 % confidence interval of `pass_at_1`."""
    pass_at: dict[int, Estimate]
    """pass@k by k from 1 to `samples`."""
    majority_at: dict[int, Estimate]
    """majority@k by k from 1 to `samples`."""
    families: dict[str, FamilyScore]
    """Scores by family of a mixture."""
    rewards: dict[str, Estimate]
    """Name of a rubric's reward -> its mean over problems; `reward` is the weighted sum (empty if
    only `correct` is known). A trajectory without a reward is left out of the mean of that reward.
    A verifier's `part per whole` is the sum of these numbers over the sum of the numbers `whole`.
    """
    statuses: dict[str, int]
    """Number of trajectories by run status, including those in progress."""
    run_again: int
    """Number of ended trajectories that are second attempts, after a machine failed the first.
    First attempts do not count.
    """
    stop_reasons: dict[str, int]
    """Number of ended trajectories by stop reason."""
    truncated_correct: int
    """Number of truncated runs whose best answer was right. They count as wrong."""
    without_call: int
    """Number of runs that ended before any model call, mostly because the prompt exceeds the
    context window.
    """
    correct_with_tool_error: float
    """Share of correct trajectories with a tool call that failed through the policy's fault (nan if
    none is correct).
    """
    tool_error_share: float
    """Share of all tool calls that failed through the policy's fault (nan without a tool call)."""
    tool_statuses: dict[str, int]
    """Number of tool calls by status."""
    roles: dict[str, dict[str, int]]
    """Counts by role, as named in `hrm_agent.training.evaluation.roles.ROLE_COUNTS`."""
    read_tokens: int
    """Prompt tokens of all trajectories, as the models reported them."""
    sampled_tokens: int
    """Completion tokens of all trajectories."""
    mean_sampled_tokens: float
    """Mean completion tokens of a trajectory (nan without trajectories)."""
    mean_tool_calls: float
    """Mean number of tool calls of a trajectory (nan without trajectories)."""
    seconds: Seconds
    """Time of runs, models and tools."""
    cost: float | None
    """Cost by the given prices (None if a model has no price)."""
    reported_cost: float | None
    """Cost reported by providers, in their currency (None if none did)."""


def evaluate(
    trajectories: Iterable[Trajectory],
    *,
    seed: int = 0,
    resamples: int = 2000,
    prices: Prices | None = None,
) -> Evaluation:
    """Statistics of `trajectories`, in any order."""
    return evaluate_samples(samples_of(trajectories), seed=seed, resamples=resamples, prices=prices)


def evaluate_samples(
    samples: Sequence[Sample], *, seed: int = 0, resamples: int = 2000, prices: Prices | None = None
) -> Evaluation:
    ended = [s for s in samples if s.status is not RunStatus.RUNNING and not s.unscored]
    by_problem = _by_problem(ended)
    passed, agreed = _curves(by_problem, seed, resamples)
    first = passed.get(1, Estimate(math.nan, 0.0, 1.0))
    effort = sum((s.effort for s in ended), Effort())
    right = [s for s in ended if s.correct]
    families: dict[str, FamilyScore] = {}
    for family in sorted({s.family for s in ended}):
        mine = [s for s in ended if s.family == family]
        groups = _by_problem(mine)
        families[family] = FamilyScore(
            len(groups), len(mine), _curves(groups, seed, resamples)[0][1]
        )
    rewards = {
        name: _reward(name, by_problem.values(), seed, resamples)
        for name in sorted({name for s in ended for name in s.rewards if name != "correct"})
    }
    over = [(s.began, s.ended) for s in ended if s.ended is not None]
    seconds = Seconds(
        wall=max(end for _, end in over) - min(begin for begin, _ in over) if over else math.nan,
        trajectory=_mean([end - begin for begin, end in over]),
        model=_mean([s.effort.model_seconds for s in ended]),
        tool=_mean([s.effort.tool_seconds for s in ended]),
    )
    cost = None if prices is None else cost_of(effort.tokens, prices)
    return Evaluation(
        problems=len(by_problem),
        trajectories=len(ended),
        without_score=sum(s.unscored for s in samples),
        samples=len(passed),
        pass_at_1=first.value,
        interval=(first.low, first.high),
        pass_at=passed,
        majority_at=agreed,
        families=families,
        rewards=rewards,
        statuses=_counted(s.status.value for s in samples),
        run_again=sum(s.second for s in ended),
        stop_reasons=_counted(s.stop_reason for s in ended),
        truncated_correct=sum(s.verified and not s.correct for s in ended),
        without_call=sum(s.effort.calls == 0 for s in ended),
        correct_with_tool_error=_mean([float(s.effort.tool_errors > 0) for s in right]),
        tool_error_share=effort.tool_errors / effort.tools.total() if effort.tools else math.nan,
        tool_statuses=dict(sorted(effort.tools.items())),
        roles={name: dict(counts) for name, counts in effort.roles.items()},
        read_tokens=_tokens(effort, "read"),
        sampled_tokens=_tokens(effort, "sampled"),
        mean_sampled_tokens=_mean([float(_tokens(s.effort, "sampled")) for s in ended]),
        mean_tool_calls=_mean([float(s.effort.tools.total()) for s in ended]),
        seconds=seconds,
        cost=cost,
        reported_cost=None if math.isnan(effort.reported_cost) else effort.reported_cost,
    )


def group_metrics(rollouts: Sequence[Trajectory], overlays: Iterable[Overlay]) -> dict[str, float]:
    """Metrics of a step: those of all sampled rollouts (`rollout/`), and those of the selection
    (`select/`).
    """
    judged = list(overlays)
    kept = {o.trajectory_id for o in judged if o.verdict is Verdict.KEPT}
    trained = [t for t in rollouts if t.id in kept]
    shares: dict[str, Callable[[Trajectory], bool]] = {
        "rollout/truncated": lambda t: t.status is RunStatus.TRUNCATED,
        "rollout/failed": lambda t: t.status in (RunStatus.FAILED, RunStatus.ABORTED),
        "rollout/correct": _correct,
    }
    groups = {o.group_id for o in judged}
    rejected = groups - {o.group_id for o in judged if o.verdict is Verdict.KEPT}
    given: defaultdict[str, list[float]] = defaultdict(list)
    for trajectory in rollouts:
        for name, value in trajectory.rewards.items():
            if name != "correct":  # the metrics have it as rollout/correct
                given[name].append(value)
    of_calls = {name for t in rollouts for name in t.rewards_by_call} - given.keys() - {"reward"}
    for name in of_calls:  # rewards of single calls alone
        given[name] = [
            math.fsum(t.rewards_by_call.get(name, {}).values()) for t in rollouts if t.rewards
        ]
    return {
        **{name: _mean([float(holds(t)) for t in rollouts]) for name, holds in shares.items()},
        "rollout/count": float(len(rollouts)),
        **{f"reward/{name}": _pooled(name, given) for name in sorted(given)},
        "rollout/correct_with_tool_error": _tool_error_share(rollouts),
        "rollout/sampled_tokens": _mean([t.sampled_tokens for t in rollouts]),
        "rollout/tool_calls": _mean([len(t.own_tool_calls) for t in rollouts]),
        "select/kept": float(len(kept)),
        "select/correct": _mean([float(_correct(t)) for t in trained]),
        "select/correct_with_tool_error": _tool_error_share(trained),
        "select/groups_rejected": len(rejected) / len(groups) if groups else math.nan,
    }


def _reward(name: str, groups: Iterable[Sequence[Sample]], seed: int, resamples: int) -> Estimate:
    """Mean of a reward over problems, or the share of a `part per whole` over all problems."""
    given = [found for group in groups if (found := [s for s in group if name in s.rewards])]
    means_U = [fmean(s.rewards[name] for s in group) for group in given]
    whole = name.partition(_PER)[2]
    if whole and all(whole in s.rewards for group in given for s in group):
        wholes_U = [fmean(s.rewards[whole] for s in group) for group in given]
        return bootstrapped_share(means_U, wholes_U, seed=seed, resamples=resamples)
    return bootstrapped([means_U], seed=seed, resamples=resamples, shares=False)[0]


def _pooled(name: str, given: Mapping[str, Sequence[float]]) -> float:
    """Mean of a reward over rollouts, or the share of a `part per whole` over all rollouts."""
    whole = math.fsum(given.get(name.partition(_PER)[2], ()))
    return math.fsum(given[name]) / whole if whole else fmean(given[name])


def _by_problem(ended: Iterable[Sample]) -> dict[Problem, list[Sample]]:
    """Samples by problem. Problems are sorted, so that intervals do not depend on the order in
    which rollouts finished.
    """
    found: defaultdict[Problem, list[Sample]] = defaultdict(list)
    for sample in ended:
        found[sample.problem].append(sample)
    return {problem: found[problem] for problem in sorted(found)}


def _curves(
    by_problem: dict[Problem, list[Sample]], seed: int, resamples: int
) -> tuple[dict[int, Estimate], dict[int, Estimate]]:
    """Estimates of pass@k and majority@k, up to the k for which every problem has samples."""
    groups = list(by_problem.values())
    most = min(map(len, groups), default=0)
    passed_PK = [pass_curve(len(group), sum(s.correct for s in group))[:most] for group in groups]
    agreed_PK = [majority_curve(_answers(group))[:most] for group in groups]
    columns = [*zip(*passed_PK, strict=True), *zip(*agreed_PK, strict=True)]
    found = bootstrapped(columns, seed=seed, resamples=resamples) if columns else []
    if all(len(group) == 1 for group in groups):
        found = [
            Estimate(each.value, *wilson_interval(each.value * len(groups), len(groups)))
            for each in found
        ]
    return dict(enumerate(found[:most], 1)), dict(enumerate(found[most:], 1))


def _answers(group: Iterable[Sample]) -> AnswerTally:
    """Answers of a problem's samples, with equal answers counted together. Samples without an
    answer have no vote.
    """
    votes: defaultdict[str, list[bool]] = defaultdict(list)
    for sample in group:
        votes[sample.answer_key].append(sample.correct)
    none = votes.pop("", [])
    return AnswerTally(
        tuple((len(right), fmean(right)) for _, right in sorted(votes.items())), len(none)
    )


def _tokens(effort: Effort, kind: str) -> int:
    return sum(count for (_, of), count in effort.tokens.items() if of == kind)


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def _correct(trajectory: Trajectory) -> bool:
    return is_positive(outcome_of(trajectory))


def _tool_error_share(trajectories: Iterable[Trajectory]) -> float:
    failed = [
        any(
            call.status is not None and call.status.is_policy_failure
            for call in trajectory.own_tool_calls
        )
        for trajectory in trajectories
        if _correct(trajectory)
    ]
    return _mean([float(each) for each in failed])


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan


def summary(found: Evaluation) -> list[tuple[str, object]]:
    """Measures of an evaluation with their values, for display."""
    rows: list[tuple[str, object]] = [
        ("problems", found.problems),
        ("trajectories", found.trajectories),
    ]
    rows += (
        [("left out: completed, without a score", found.without_score)]
        if found.without_score
        else []
    )
    rows += [(f"pass@{k}", interval_text(found.pass_at[k])) for k in shown_ks(found.samples)] or [
        ("pass@1", math.nan)
    ]
    rows += [
        (f"majority@{k}", interval_text(found.majority_at[k]))
        for k in shown_ks(found.samples)
        if k > 1
    ]
    rows += [
        (f"reward {name}", interval_text(estimate)) for name, estimate in found.rewards.items()
    ]
    known = (
        bool(found.read_tokens or found.sampled_tokens) or found.without_call == found.trajectories
    )
    counts = f"{found.read_tokens:,}, {found.sampled_tokens:,}"
    seconds = found.seconds
    times = [
        f"{plain_text(value)} s" for value in (seconds.trajectory, seconds.model, seconds.tool)
    ]
    rows += [
        ("tool error among the correct", found.correct_with_tool_error),
        ("tool errors, share of tool calls", found.tool_error_share),
        ("tool calls, mean", found.mean_tool_calls),
        ("completion tokens, mean", found.mean_sampled_tokens if known else NOT_REPORTED),
        ("prompt tokens, completion tokens", counts if known else NOT_REPORTED),
        ("wall time, seconds", seconds.wall),
        ("a trajectory: from start to end, models, tools", ", ".join(times)),
        ("statuses", _counts(found.statuses)),
        ("run once more, failed by a machine", found.run_again),
        ("stop reasons", _counts(found.stop_reasons)),
        ("right, but truncated", found.truncated_correct),
        ("ended before any model call", found.without_call),
    ]
    costs = (("cost, by the prices given", found.cost), ("cost, as reported", found.reported_cost))
    return rows + [(name, f"{cost:.6g}") for name, cost in costs if cost is not None]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())
