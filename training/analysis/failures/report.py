"""Failed runs of a record in classes: counts with intervals, examples, and the change to another
record.

A run failed if its answer is not right (`correct` of at most 0.5, or 0 since it was cut off), if it
ended by an error, or if it gave no text. A run with `reward` alone failed if another run, of this
record or of one that it is compared with, was rewarded more. If all these runs have the same reward,
it does not show which of them failed, so that they are not judged. Neither are other runs without a
reward.

Shares are means over tasks of the share of a task's runs, as pass@1 is, so that many runs of one
task do not count as many tasks. Intervals are drawn over tasks. Changes are tested as in
`hrm_agent.training.evaluation.compare`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import NormalDist

from hrm_agent.basics.intervals import Estimate, bootstrapped, wilson_interval
from hrm_agent.errors import RunError
from hrm_agent.training.analysis.facts import parts_of, readable
from hrm_agent.training.analysis.failures.classes import NAMES, class_named
from hrm_agent.training.analysis.failures.rules import Evidence, Explained, explain
from hrm_agent.training.evaluation.compare import with_width
from hrm_agent.training.evaluation.rubrics import scored_by
from hrm_agent.training.evaluation.samples import Problem
from hrm_agent.training.evaluation.side_by_side import holm
from hrm_agent.training.evaluation.statistics import sign_flip_p
from hrm_agent.training.records.runs import RecordedRuns
from hrm_agent.training.select.roc import is_positive, outcome_of
from hrm_agent.trajectory import RunStatus, Scoring, StopReason, Trajectory, content_hash

__all__ = [
    "NO_REWARD",
    "RIGHT",
    "SAME_REWARD",
    "ClassChange",
    "ClassCount",
    "ClassifiedRun",
    "FailureChange",
    "FailureReport",
    "Moved",
    "change_between",
    "classified_runs",
    "failure_report",
]

RIGHT, UNJUDGED = "right", "unjudged"
"""Outcomes of runs that did not fail, in the place of a class."""
NO_REWARD = "they have no reward"
SAME_REWARD = "all have the same reward, which does not show which failed"
_LEVEL = 0.05
_RESAMPLES, _SEED = 2000, 0
_NAMED = 8
"""Maximum number of tasks that are named for one move."""


@dataclass(frozen=True, slots=True)
class ClassifiedRun:
    """Run with its class."""

    trajectory: str
    """Id of the trajectory."""
    thread: str
    """Thread id."""
    problem: Problem
    """Task of the run."""
    family: str
    """Family of the task."""
    part: str
    """Name of the part of the record: a step of a training, an evaluation."""
    outcome: str
    """Primary class; `right`, or `unjudged` for a run without a reward."""
    secondary: tuple[str, ...] = ()
    """Further classes that match."""
    role: str = ""
    """Role that made the failure (empty if the record shows none)."""
    evidence: Evidence | None = None
    """Evidence of the primary class (None if it has none)."""
    unchecked: tuple[tuple[str, str], ...] = ()
    """Classes whose rules are not checkable, each as (class, reason)."""
    unjudged: str = ""
    """Reason why the run is not judged (empty if it is)."""
    best: float | None = None
    """Reward that the run, which has a reward alone, was measured by (None for other runs)."""

    @property
    def failed(self) -> bool:
        return self.outcome not in (RIGHT, UNJUDGED)


@dataclass(frozen=True, slots=True)
class ClassCount:
    """Runs of one primary class."""

    name: str
    """Name of the class."""
    rule: str
    """Rule in words, or the class's meaning for a judge."""
    apart: bool
    """True for faults that are not the policy's."""
    runs: int
    """Number of runs."""
    tasks: int
    """Number of tasks."""
    share: Estimate
    """Mean over tasks of the share of judged runs."""
    secondary: int
    """Number of runs that match the class as well."""
    details: dict[str, int]
    """Kinds within the class: detail -> number of runs."""
    unchecked: dict[str, int]
    """Missing part of the record that the rule reads -> number of failed runs."""
    examples: tuple[ClassifiedRun, ...]
    """First runs."""


@dataclass(frozen=True, slots=True)
class FailureReport:
    """Failures of one record."""

    run: str
    """Name by which the user gave the record."""
    runs: int
    """Number of runs."""
    judged: int
    """Number of runs that are right or failed."""
    failed: int
    """Number of failed runs."""
    apart: int
    """Number of failed runs that are not the policy's fault."""
    tasks: int
    """Number of tasks."""
    unjudged: dict[str, int]
    """Reason -> number of runs that are not judged."""
    by_reward: int
    """Number of judged runs that have a reward alone."""
    best: float | None
    """Reward by which these were measured: the highest one (None without such runs)."""
    classes: tuple[ClassCount, ...]
    """Classes that occur or could not be checked, most frequent first."""
    roles: dict[str, dict[str, int]]
    """Role that made the failure -> class -> number of runs."""
    families: dict[str, dict[str, int]]
    """Family of tasks -> class, or `right` -> number of runs."""
    left_out: dict[str, int]
    """Reason -> number of runs left out."""
    failures: tuple[ClassifiedRun, ...]
    """Failed runs."""


@dataclass(frozen=True, slots=True)
class ClassChange:
    """Change of one class."""

    name: str
    """Name of the class, or `right`."""
    before: float
    """Share in the other record."""
    after: float
    """Share in this record."""
    difference: Estimate
    """`after` less `before`."""
    p_value: float
    """Two-sided p-value of the hypothesis that the shares do not differ. Those of classes are
    corrected for the number of classes, by Holm's method.
    """

    @property
    def certain(self) -> bool:
        """True if the change is significant at the 5 % level."""
        return self.p_value < _LEVEL


@dataclass(frozen=True, slots=True)
class Moved:
    """Runs that went from one outcome to another."""

    before: str
    """Class in the other record, or `right`."""
    after: str
    """Class in this record, or `right`."""
    runs: int
    """Number of paired runs."""
    tasks: tuple[str, ...]
    """Ids of their tasks, the first ones."""


@dataclass(frozen=True, slots=True)
class FailureChange:
    """Change from another record to this one."""

    against: str
    """Name of the other record."""
    paired: int
    """Number of tasks that both records have (0: no task is common, and shares are compared as
    those of independent runs).
    """
    changes: tuple[ClassChange, ...]
    """Classes whose shares differ, largest difference first."""
    moved: tuple[Moved, ...]
    """Runs of paired tasks that changed, most frequent first."""


def classified_runs(
    runs: RecordedRuns,
    left_out: dict[str, int],
    *,
    by: str | None = None,
    others: Sequence[RecordedRuns] = (),
    on_run: Callable[[int, int], None] = lambda done, total: None,
    on_failed: Callable[[Trajectory, Explained], None] = lambda trajectory, found: None,
) -> list[ClassifiedRun]:
    """Classes of all ended runs of a record. `left_out`: reason -> number of runs left out, to which
    this adds. `by`: name of the scores that replace the recorded rewards. `others`: records that
    this one is compared with. `on_failed`: called with each failed run, read with its requests, and
    its classes.

    Candidates among which a run chose, and forks, are left out. Raises `RunError` if no run has
    ended, and `ConfigError` if there are no scores of this name.
    """
    kept = _kept(runs, left_out, by)
    if not kept:
        raise RunError(
            f"There is no ended run on record in {runs.where}.",
            "`hrm-agent history` lists the runs of a store.",
        )
    rewards = _rewards_alone([kept, *(_kept(other, {}, by) for other in others)])
    best = max(rewards) if len(rewards) > 1 else None
    found: list[ClassifiedRun] = []
    for done, (part, header) in enumerate(kept, 1):
        measured = best if _has_reward_alone(header) else None
        judged = _judged(header, measured)
        if judged is not None:
            found.append(replace(_run_of(header, part, judged), best=measured))
        else:
            for read in readable(runs, [header], left_out, requests=True):
                whole = read.model_copy(update={name: getattr(header, name) for name in _SCORED})
                explained = explain(whole)
                on_failed(whole, explained)
                found.append(replace(_failed_run(whole, part, explained), best=measured))
        on_run(done, len(kept))
    return found


def _kept(
    runs: RecordedRuns, left_out: dict[str, int], by: str | None
) -> list[tuple[str, Trajectory]]:
    """Runs to classify, without calls, each with the name of its part."""
    parts = parts_of(runs, left_out)
    headers = [header for part in parts for header in part.headers]
    threads = {header.thread_id for header in headers}
    scorings = {} if by is None else runs.scorings(by, headers)
    kept: list[tuple[str, Trajectory]] = []
    for part in parts:
        for header in part.headers:
            scored = header if by is None else _scored_by(header, scorings)
            if header.group_id in threads:
                _count(left_out, "candidates among which a run chose its answer")
            elif header.forked_from is not None:
                _count(left_out, "forks")
            elif scored is None:
                _count(left_out, f"without a reward by {by}")
            else:
                kept.append((part.name, scored))
    return kept


_SCORED = ("rewards", "status", "stop_reason", "error")
"""Fields of a run that scores of a rubric replace."""


def _scored_by(header: Trajectory, scorings: Mapping[str, Scoring]) -> Trajectory | None:
    """Run with the rewards of a rubric (None if that gave none). If the run's own verifier failed,
    these rewards are in its place.
    """
    scored = scored_by(header, scorings)
    if scored is None or not scored.rewards or scored.stop_reason is not StopReason.VERIFIER_ERROR:
        return scored
    ended = {"status": RunStatus.COMPLETED, "stop_reason": StopReason.ANSWER, "error": None}
    return scored.model_copy(update=ended)


def _has_reward_alone(header: Trajectory) -> bool:
    return "reward" in header.rewards and "correct" not in header.rewards


def _rewards_alone(records: Iterable[Sequence[tuple[str, Trajectory]]]) -> set[float]:
    """Different rewards of the runs that have a reward alone, of all records."""
    return {each.reward for kept in records for _, each in kept if _has_reward_alone(each)}


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def _judged(header: Trajectory, best: float | None) -> str | None:
    """Outcome of a run that did not fail (None if it failed). `best`: reward that a run with a
    reward alone is measured by (None: no reward shows which run failed).
    """
    scored = "correct" in header.rewards
    if not scored and best is None:
        answered = header.status is RunStatus.COMPLETED and (header.answer or "").strip()
        return UNJUDGED if answered else None
    right = is_positive(outcome_of(header)) if scored or best is None else header.reward >= best
    ended = header.status not in (RunStatus.FAILED, RunStatus.ABORTED, RunStatus.TRUNCATED)
    return RIGHT if right and ended else None


def _run_of(header: Trajectory, part: str, outcome: str) -> ClassifiedRun:
    reason = SAME_REWARD if _has_reward_alone(header) else NO_REWARD
    return ClassifiedRun(
        header.id,
        header.thread_id,
        Problem(header.task.id, content_hash(header.task.prompt)),
        header.task.family,
        part,
        outcome,
        unjudged=reason if outcome == UNJUDGED else "",
    )


def _failed_run(whole: Trajectory, part: str, explained: Explained) -> ClassifiedRun:
    shows = explained.evidence.get(explained.primary)
    roles = {
        each.id: each.identity.role
        for each in (*whole.failed_calls, *whole.own_calls, *whole.own_tool_calls)
    }
    role = "" if shows is None else shows.role or roles.get(shows.call, "")
    return replace(
        _run_of(whole, part, explained.primary),
        secondary=explained.secondary,
        role=role,
        evidence=shows,
        unchecked=tuple(explained.unchecked.items()),
    )


def failure_report(
    where: str, runs: Sequence[ClassifiedRun], left_out: Mapping[str, int], *, examples: int
) -> FailureReport:
    """Count the classes of a record. `examples`: maximum number of each class."""
    judged = [each for each in runs if each.outcome != UNJUDGED]
    failed = [each for each in judged if each.failed]
    names = [
        name
        for name in NAMES
        if any(each.outcome == name or dict(each.unchecked).get(name) for each in failed)
    ]
    shares = _shares(judged, names)
    roles: defaultdict[str, Counter[str]] = defaultdict(Counter)
    families: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for each in judged:
        families[each.family][each.outcome] += 1
        if each.failed and each.role:
            roles[each.role][each.outcome] += 1
    counts = [
        _class_count(name, share, failed, examples)
        for name, share in zip(names, shares, strict=True)
    ]
    return FailureReport(
        run=where,
        runs=len(runs),
        judged=len(judged),
        failed=len(failed),
        apart=sum(class_named(each.outcome).apart for each in failed),
        tasks=len({each.problem for each in runs}),
        unjudged=dict(Counter(each.unjudged for each in runs if each.outcome == UNJUDGED)),
        by_reward=sum(each.best is not None for each in judged),
        best=next((each.best for each in judged if each.best is not None), None),
        classes=tuple(sorted(counts, key=lambda each: (-each.runs, NAMES.index(each.name)))),
        roles={name: dict(found.most_common()) for name, found in roles.items()},
        families={name: dict(found.most_common()) for name, found in families.items()},
        left_out=dict(left_out),
        failures=tuple(failed),
    )


def _class_count(
    name: str, share: Estimate, failed: Sequence[ClassifiedRun], examples: int
) -> ClassCount:
    of_class = [each for each in failed if each.outcome == name]
    lacks = Counter(why for each in failed for lacking, why in each.unchecked if lacking == name)
    details = Counter(each.evidence.detail for each in of_class if each.evidence is not None)
    known = class_named(name)
    return ClassCount(
        name=name,
        rule=known.rule,
        apart=known.apart,
        runs=len(of_class),
        tasks=len({each.problem for each in of_class}),
        share=share,
        secondary=sum(name in each.secondary for each in failed),
        details={detail: count for detail, count in details.most_common() if detail},
        unchecked=dict(lacks.most_common()),
        examples=tuple(of_class[:examples]),
    )


def _by_problem(runs: Iterable[ClassifiedRun]) -> dict[Problem, list[ClassifiedRun]]:
    found: defaultdict[Problem, list[ClassifiedRun]] = defaultdict(list)
    for each in runs:
        found[each.problem].append(each)
    return {problem: found[problem] for problem in sorted(found)}


def _columns(
    groups: Iterable[Sequence[ClassifiedRun]], names: Sequence[str]
) -> list[list[Fraction]]:
    """Share of each problem's runs, by class."""
    counted = [(Counter(each.outcome for each in runs), len(runs)) for runs in groups]
    return [[Fraction(counts[name], total) for counts, total in counted] for name in names]


def _shares(judged: Sequence[ClassifiedRun], names: Sequence[str]) -> list[Estimate]:
    columns = [[*map(float, each)] for each in _columns(_by_problem(judged).values(), names)]
    return bootstrapped(columns, seed=_SEED, resamples=_RESAMPLES) if columns else []


def change_between(
    against: str, before: Sequence[ClassifiedRun], after: Sequence[ClassifiedRun]
) -> FailureChange:
    """Change from the record `against`, whose runs are `before`, to a record with the runs `after`.

    Runs of a task that both records have are paired in the order of their threads.
    """
    old, new = (
        _by_problem(sorted((e for e in runs if e.outcome != UNJUDGED), key=_in_threads))
        for runs in (before, after)
    )
    both = sorted(old.keys() & new.keys())
    a, b = (
        _columns([runs[each] for each in both] if both else runs.values(), (RIGHT, *NAMES))
        for runs in (old, new)
    )
    occur = {
        name: (x, y) for name, x, y in zip((RIGHT, *NAMES), a, b, strict=True) if any(x) or any(y)
    }
    found = _paired([*occur.values()]) if both else [_unpaired(x, y) for x, y in occur.values()]
    p_values = dict(zip(occur, (p_value for _, p_value in found), strict=True))
    classes = [name for name in occur if name != RIGHT]
    p_values |= zip(classes, holm([p_values[name] for name in classes]), strict=True)
    changes = [
        ClassChange(name, _mean(x), _mean(y), difference, p_values[name])
        for (name, (x, y)), (difference, _) in zip(occur.items(), found, strict=True)
    ]
    moved: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for problem in both:
        # further samples of one record have no partner
        for x, y in zip(old[problem], new[problem], strict=False):
            if x.outcome != y.outcome:
                moved[x.outcome, y.outcome].append(problem.id)
    return FailureChange(
        against=against,
        paired=len(both),
        changes=tuple(sorted(changes, key=lambda each: -abs(each.difference.value))),
        moved=tuple(
            Moved(*states, len(ids), tuple(dict.fromkeys(ids))[:_NAMED])
            for states, ids in sorted(moved.items(), key=lambda each: (-len(each[1]), each[0]))
        ),
    )


def _in_threads(run: ClassifiedRun) -> tuple[list[tuple[bool, int, str]], str]:
    """Sort key by which numbers in names of threads count as numbers: sample 2 before sample 10."""
    pieces = re.findall(r"[0-9]{1,40}|[^0-9]+", run.thread)
    numbers = ((piece, piece.isdecimal() and piece.isascii()) for piece in pieces)
    return [
        (is_number, int(piece) if is_number else 0, piece) for piece, is_number in numbers
    ], run.trajectory


def _mean(column: Sequence[Fraction]) -> float:
    return float(sum(column) / len(column)) if column else 0.0


_Columns = tuple[Sequence[Fraction], Sequence[Fraction]]


def _paired(classes: Sequence[_Columns]) -> list[tuple[Estimate, float]]:
    """Difference of the shares of the same tasks, and its p-value, of each class."""
    columns = [[y - x for x, y in zip(*each, strict=True)] for each in classes]
    drawn = bootstrapped(
        [[*map(float, each)] for each in columns], seed=_SEED, resamples=_RESAMPLES, shares=False
    )
    return [
        (with_width(estimate, len(column)), sign_flip_p(column))
        for estimate, column in zip(drawn, columns, strict=True)
    ]


def _unpaired(before: Sequence[Fraction], after: Sequence[Fraction]) -> tuple[Estimate, float]:
    """Difference of the shares of independent tasks, and its p-value: the level of the widest
    interval without 0.
    """
    low, high = 0.0, 40.0
    for _ in range(50):
        middle = (low + high) / 2
        found = _newcombe(before, after, middle)
        low, high = (middle, high) if found.low > 0 or found.high < 0 else (low, middle)
    normal = NormalDist()
    return _newcombe(before, after, normal.inv_cdf(1 - _LEVEL / 2)), 2 * normal.cdf(-low)


def _newcombe(before: Sequence[Fraction], after: Sequence[Fraction], z: float) -> Estimate:
    """Difference of the shares of independent tasks (Newcombe 1998, method 10)."""
    x, y = _mean(before), _mean(after)
    (x_low, x_high), (y_low, y_high) = (
        wilson_interval(float(sum(column)), len(column), z) for column in (before, after)
    )
    low = ((y - y_low) ** 2 + (x_high - x) ** 2) ** 0.5
    high = ((y_high - y) ** 2 + (x - x_low) ** 2) ** 0.5
    return Estimate(y - x, y - x - low, y - x + high)
