"""Statistics of scorings: means of one rubric's rewards, and a comparison of two rubrics on the
same runs.

Two rubrics are compared on the trajectories that both have scored. As in
`hrm_agent.training.evaluation.statistics` the problem is the unit, since samples of one problem are
not independent.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import fmean

from hrm_agent.basics.intervals import Estimate, bootstrapped
from hrm_agent.errors import ConfigError, RunError, nearest
from hrm_agent.store import RunStore
from hrm_agent.training.evaluation.compare import with_width
from hrm_agent.training.evaluation.samples import Problem
from hrm_agent.training.evaluation.statistics import sign_flip_p
from hrm_agent.training.select.roc import is_positive, outcome_of
from hrm_agent.trajectory import FEEDBACK, NO_REWARDS, RunStatus, Scoring, Trajectory, content_hash

__all__ = [
    "RECORDED",
    "Difference",
    "FaultCount",
    "RubricComparison",
    "compare_rubrics",
    "fault_counts",
    "recorded_scorings",
    "reward_means",
    "scored_by",
    "scorings_named",
]

RECORDED = "recorded"
"""Name of the rewards that were recorded with runs, which may be used in place of a
rubric's name.
"""
_RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class FaultCount:
    """Frequency of one reason why a reward gave no value."""

    reward: str
    """Name of the reward."""
    fault: str
    """Value of a `RewardFault`, or `no opinion` if the reward function returned None."""
    count: int
    """Number of trajectories."""
    trajectory: str
    """Id of one such trajectory."""
    reason: str
    """Reason given for that trajectory."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A trajectory on which two rubrics differ."""

    trajectory: str
    """Id of the trajectory."""
    task: str
    """Id of the trajectory's task."""
    a: float
    """Outcome by the first rubric."""
    b: float
    """Outcome by the second rubric."""
    a_reason: str
    """Reasons of the first rubric."""
    b_reason: str
    """Reasons of the second rubric."""


@dataclass(frozen=True, slots=True)
class RubricComparison:
    """Comparison of two rubrics, A and B, on one set of runs. Differences are B less A."""

    a: str
    """Name of the rubric that is subtracted."""
    b: str
    """Name of the rubric from which A is subtracted."""
    trajectories: int
    """Number of trajectories that both rubrics have scored."""
    problems: int
    """Number of problems of these trajectories."""
    right: dict[str, int]
    """Number of trajectories that are right by `both` rubrics, only by `a`, only by `b`, or by
    `neither`.
    """
    a_outcome: Estimate
    """Mean outcome by A over problems."""
    b_outcome: Estimate
    """Mean outcome by B over problems."""
    outcome: Estimate
    """Difference of the outcome, resampled over problems."""
    a_reward: Estimate
    """Mean reward by A over problems."""
    b_reward: Estimate
    """Mean reward by B over problems."""
    reward: Estimate
    """Difference of the reward, resampled over problems."""
    p_value: float
    """Two-sided p-value of the hypothesis that both rubrics find equally many trajectories right:
    exact, by sign flips over problems.
    """
    only_a: int
    """Number of trajectories without a reward by B."""
    only_b: int
    """Number of trajectories without a reward by A."""
    differing: tuple[Difference, ...]
    """Trajectories with different outcomes, largest difference first."""


def recorded_scorings(trajectories: Iterable[Trajectory]) -> dict[str, Scoring]:
    """Recorded rewards of runs as scorings. A truncated run has outcome 0."""
    return {
        t.id: Scoring(
            trajectory_id=t.id,
            rubric=RECORDED,
            outcome=outcome_of(t),
            total=t.rewards.get("reward", outcome_of(t)),
            scored_at=t.ended_at or t.started_at,
        )
        for t in trajectories
        if t.rewards and t.status is not RunStatus.RUNNING
    }


def scorings_named(
    store: RunStore, name: str, headers: Iterable[Trajectory]
) -> Mapping[str, Scoring]:
    """Scorings with the name of a rubric, by trajectory id. Raises `ConfigError` for a name without
    scorings.
    """
    if name == RECORDED:
        return recorded_scorings(headers)
    known = store.scorings.rubrics()
    if name not in known:
        if name == FEEDBACK:
            raise ConfigError(
                f"There is no feedback on any run in {store.url}.",
                "Send feedback to `hrm-agent serve` by POST /v1/feedback.",
            )
        there = f"There is {', '.join([*known, RECORDED])}."
        hint = f"{nearest(name, [*known, RECORDED])} {there} A rubric is named as module:attribute.".strip()
        raise ConfigError(f"There are no scores {name!r} in {store.url}.", hint)
    return store.scorings.by_rubric(name)


def scored_by(trajectory: Trajectory, scorings: Mapping[str, Scoring]) -> Trajectory | None:
    """Return the trajectory with a rubric's rewards instead of the recorded ones (None if the
    rubric gave no rewards).

    A failed or stopped run, which a rubric does not score, is returned without rewards: it counts
    as a wrong answer, as in any evaluation.
    """
    scoring = scorings.get(trajectory.id)
    if scoring is not None and scoring.rewards:
        return trajectory.model_copy(update=scoring.as_rewards)
    if trajectory.status in (RunStatus.COMPLETED, RunStatus.TRUNCATED):
        return None
    return trajectory.model_copy(update=NO_REWARDS)


def reward_means(
    trajectories: Sequence[Trajectory], scorings: Mapping[str, Scoring], *, seed: int = 0
) -> dict[str, Estimate]:
    """Mean over problems of each reward. `correct` is the outcome and `reward` the weighted sum."""
    by_name: defaultdict[str, defaultdict[Problem, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for trajectory in trajectories:
        for name, value in (
            scorings[trajectory.id].rewards.items() if trajectory.id in scorings else ()
        ):
            by_name[name][_problem(trajectory)].append(value)
    found: dict[str, Estimate] = {}
    for name, problems in by_name.items():
        means = [fmean(problems[problem]) for problem in sorted(problems)]
        shares = all(0 <= value <= 1 for value in means)
        (found[name],) = bootstrapped([means], seed=seed, resamples=_RESAMPLES, shares=shares)
    return found


def fault_counts(
    trajectories: Iterable[Trajectory], scorings: Mapping[str, Scoring]
) -> list[FaultCount]:
    """Reasons why rewards gave no value, most frequent first."""
    counts: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], tuple[str, str]] = {}
    for trajectory in trajectories:
        for score in scorings[trajectory.id].scores if trajectory.id in scorings else ():
            if score.value is None:
                kind = (score.name, score.fault.value if score.fault else "no opinion")
                counts[kind] += 1
                examples.setdefault(kind, (trajectory.id, score.reason))
    return [FaultCount(*kind, count, *examples[kind]) for kind, count in counts.most_common()]


def compare_rubrics(
    trajectories: Iterable[Trajectory],
    a: tuple[str, Mapping[str, Scoring]],
    b: tuple[str, Mapping[str, Scoring]],
) -> RubricComparison:
    """Compare two rubrics, each a name with scorings by trajectory id. Raises `RunError` if no
    trajectory has rewards by both.
    """
    (a_name, by_a), (b_name, by_b) = a, b
    everything = list(trajectories)
    rewarded = [
        {t.id for t in everything if t.id in by and by[t.id].rewards} for by in (by_a, by_b)
    ]
    both = [t for t in everything if t.id in rewarded[0] & rewarded[1]]
    if not both:
        raise RunError(
            f"No trajectory has rewards both by {a_name} ({len(rewarded[0])}) and by {b_name}"
            f" ({len(rewarded[1])}).",
            "`hrm-agent show TRAJECTORY` lists the scores of one; `hrm-agent rescore` makes more.",
        )
    # pairs (A, B) by problem
    outcomes = _Pairs()
    totals = _Pairs()
    right: dict[Problem, list[tuple[bool, bool]]] = {}
    differing: list[Difference] = []
    for trajectory in both:
        problem = _problem(trajectory)
        of_a = by_a[trajectory.id]
        of_b = by_b[trajectory.id]
        values = of_a.rewards["correct"], of_b.rewards["correct"]
        outcomes.setdefault(problem, []).append(values)
        totals.setdefault(problem, []).append((of_a.rewards["reward"], of_b.rewards["reward"]))
        right.setdefault(problem, []).append((is_positive(values[0]), is_positive(values[1])))
        if values[0] != values[1]:
            differing.append(
                Difference(trajectory.id, trajectory.task.id, *values, _said(of_a), _said(of_b))
            )
    columns = [*_columns(outcomes), *_columns(totals)]
    means = bootstrapped([columns[0], columns[1]], seed=0, resamples=_RESAMPLES)
    of = bootstrapped(columns[2:], seed=0, resamples=_RESAMPLES, shares=False)
    words = {
        (True, True): "both",
        (True, False): "a",
        (False, True): "b",
        (False, False): "neither",
    }
    counted = Counter(words[pair] for pairs in right.values() for pair in pairs)
    return RubricComparison(
        a=a_name,
        b=b_name,
        trajectories=len(both),
        problems=len(outcomes),
        right={word: counted[word] for word in words.values()},
        a_outcome=means[0],
        b_outcome=means[1],
        outcome=with_width(of[0], len(outcomes)),
        a_reward=of[1],
        b_reward=of[2],
        reward=of[3],
        p_value=sign_flip_p(
            [
                Fraction(sum(b_right - a_right for a_right, b_right in pairs), len(pairs))
                for _, pairs in sorted(right.items())
            ]
        ),
        only_a=len(rewarded[0] - rewarded[1]),
        only_b=len(rewarded[1] - rewarded[0]),
        differing=tuple(sorted(differing, key=lambda one: -abs(one.b - one.a))),
    )


_Pairs = dict[Problem, list[tuple[float, float]]]


def _columns(pairs: _Pairs) -> list[list[float]]:
    """Means by sorted problem, as three lists: of A, of B, and of their difference."""
    a, b = (
        [fmean(pair[side] for pair in pairs[problem]) for problem in sorted(pairs)]
        for side in (0, 1)
    )
    return [a, b, [y - x for x, y in zip(a, b, strict=True)]]


def _said(scoring: Scoring) -> str:
    """Reasons of a scoring's rewards as text. If there are several rewards, each reason has the
    name and value of its reward.
    """
    several = len(scoring.scores) > 1
    said = (f"{score.name} {score.value:g}: {score.reason}" if several and score.value is not None else score.reason
            for score in scoring.scores if score.reason)  # fmt: skip
    return "; ".join(said)


def _problem(trajectory: Trajectory) -> Problem:
    return Problem(trajectory.task.id, content_hash(trajectory.task.prompt))
