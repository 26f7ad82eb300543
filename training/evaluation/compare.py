"""Comparison of two evaluations of the same problems, with a test of significance.

Results on the same problem (equal id and prompt) are paired, so that the problem's difficulty
cancels out. So two runs with overlapping intervals may still differ significantly. Problems of only
one evaluation are listed and left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import fmean

from hrm_agent.basics.intervals import Estimate, bootstrapped, wilson_interval
from hrm_agent.errors import RunError
from hrm_agent.training.evaluation.samples import Problem, Sample
from hrm_agent.training.evaluation.statistics import sign_flip_p
from hrm_agent.training.evaluation.tables import NOT_REPORTED, Row, interval_text, plain_text
from hrm_agent.trajectory import RunStatus

__all__ = [
    "SCORED_APART",
    "ComparedRun",
    "Comparison",
    "compare",
    "comparison_lines",
    "comparison_rows",
    "ended_by_problem",
    "share_right",
    "with_width",
]

_LEVEL = 0.05
SCORED_APART = (
    "Problems with an answer that is right in one and wrong in the other: {}. They may have been"
    " scored by different rewards: compare scores of one rubric (--by NAME)."
)
_NAMED = 20
"""Maximum number of problem ids listed in the text. The JSON file lists all."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """Results of one run, on the paired problems only."""

    name: str
    """Name by which the user gave the run: a folder, a store or a file."""
    trajectories: int
    """Number of ended trajectories on the paired problems."""
    pass_at_1: Estimate
    """Mean over problems of the share of right samples."""
    sampled_tokens: float
    """Completion tokens per trajectory: mean over problems of the mean of a problem's samples."""
    tool_errors: float
    """Tool calls per trajectory that failed through the policy's fault: mean over problems of the
    mean of a problem's samples.
    """


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of the runs A and B. Differences are B less A."""

    a: ComparedRun
    """Run that is subtracted."""
    b: ComparedRun
    """Run from which A is subtracted."""
    problems: int
    """Number of problems in both runs."""
    difference: Estimate
    """Difference of pass@1, resampled over pairs."""
    p_value: float
    """Two-sided p-value of the hypothesis that A and B do not differ. With one sample per problem
    and run, it is McNemar's exact test.
    """
    test: str
    """Name of the test that gave `p_value`."""
    sampled_tokens: Estimate
    """Difference of the mean completion tokens, resampled over pairs."""
    tool_errors: Estimate
    """Difference of the mean failed tool calls, resampled over pairs."""
    better: tuple[str, ...]
    """Ids of problems that B answers right more often, in order."""
    worse: tuple[str, ...]
    """Ids of problems that A answers right more often, in order."""
    only_a: tuple[str, ...]
    """Ids of problems that B lacks, has with another prompt, or has not finished."""
    only_b: tuple[str, ...]
    """Ids of problems that A lacks, has with another prompt, or has not finished."""

    scored_apart: int = 0
    """Number of problems with one answer that is right in one run and wrong in the other, so that
    the two were scored by different rewards.
    """

    @property
    def certain(self) -> bool:
        """True if the difference is significant at the 5 % level."""
        return self.p_value < _LEVEL


def compare(
    a: Sequence[Sample],
    b: Sequence[Sample],
    names: tuple[str, str],
    *,
    seed: int = 0,
    resamples: int = 10_000,
) -> Comparison:
    """Compare two evaluations, whose `names` are shown. Raises `RunError` if no problem has an
    ended trajectory in both.
    """
    ours, theirs = (
        ended_by_problem(samples, name) for samples, name in zip((a, b), names, strict=True)
    )
    both = sorted(ours.keys() & theirs.keys())
    if not both:
        same = {p.id for p in ours} & {p.id for p in theirs}
        why = f": {len(same)} ids are in both, with other prompts" if same else ""
        raise RunError(
            f"{names[0]} and {names[1]} have no problem in common{why}.",
            "Evaluate both on the same --tasks, --split, --count and --seed.",
        )
    shares = [(share_right(ours[problem]), share_right(theirs[problem])) for problem in both]
    differences = [of_b - of_a for of_a, of_b in shares]
    means = [[_means(side[problem]) for problem in both] for side in (ours, theirs)]
    of_a, of_b = bootstrapped(
        [[float(x) for x in side] for side in zip(*shares, strict=True)],
        seed=seed,
        resamples=resamples,
    )
    columns = [
        list(map(float, differences)),
        *([y[i] - x[i] for x, y in zip(*means, strict=True)] for i in range(2)),
    ]
    difference, tokens, errors = bootstrapped(columns, seed=seed, resamples=resamples, shares=False)
    single = all(len(side[problem]) == 1 for side in (ours, theirs) for problem in both)
    return Comparison(
        a=_side(names[0], [ours[p] for p in both], of_a, means[0]),
        b=_side(names[1], [theirs[p] for p in both], of_b, means[1]),
        problems=len(both),
        difference=with_width(difference, len(both)),
        p_value=sign_flip_p(differences),
        test="McNemar, exact" if single else "paired permutation (sign flips), exact",
        sampled_tokens=tokens,
        tool_errors=errors,
        better=tuple(p.id for p, d in zip(both, differences, strict=True) if d > 0),
        worse=tuple(p.id for p, d in zip(both, differences, strict=True) if d < 0),
        only_a=tuple(p.id for p in sorted(ours.keys() - theirs.keys())),
        only_b=tuple(p.id for p in sorted(theirs.keys() - ours.keys())),
        scored_apart=sum(_scored_apart(ours[problem], theirs[problem]) for problem in both),
    )


def _scored_apart(ours: Sequence[Sample], theirs: Sequence[Sample]) -> bool:
    """True if an answer is right in one run, and in the other only wrong."""
    right, wrong = (
        [
            {s.answer_key for s in side if s.answer_key and s.verified is flag}
            for side in (ours, theirs)
        ]
        for flag in (True, False)
    )
    return bool((right[0] & wrong[1] - right[1]) | (right[1] & wrong[0] - right[0]))


def ended_by_problem(samples: Iterable[Sample], name: str) -> dict[Problem, list[Sample]]:
    """Ended samples by problem. `name`: name of the run. Raises `RunError` if there are none."""
    found: defaultdict[Problem, list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.status is not RunStatus.RUNNING:
            found[sample.problem].append(sample)
    if not found:
        raise RunError(
            f"{name} has no trajectory that ended.", f"`hrm-agent resume {name}` resumes a run."
        )
    return found


def with_width(difference: Estimate, problems: int) -> Estimate:
    """Return the estimate with an interval of some width. The bootstrap interval of equal
    differences (mostly 0) has no width, so it gets the width of Wilson's interval for 0.
    """
    if difference.low < difference.high:
        return difference
    _, half = wilson_interval(0, problems)
    return Estimate(
        difference.value, max(-1.0, difference.value - half), min(1.0, difference.value + half)
    )


def share_right(group: Sequence[Sample]) -> Fraction:
    """Share of right samples of one problem."""
    return Fraction(sum(s.correct for s in group), len(group))


def _means(group: Sequence[Sample]) -> tuple[float, float]:
    tokens = (
        sum(n for (_, kind), n in s.effort.tokens.items() if kind == "sampled") for s in group
    )
    return fmean(tokens), fmean(s.effort.tool_errors for s in group)


def _side(
    name: str,
    groups: Sequence[Sequence[Sample]],
    share: Estimate,
    means: Sequence[tuple[float, float]],
) -> ComparedRun:
    tokens, errors = (fmean(column) for column in zip(*means, strict=True))
    return ComparedRun(name, sum(map(len, groups)), share, tokens, errors)


def comparison_rows(found: Comparison) -> list[Row]:
    """Rows of a table: measure, value of A, value of B, difference."""
    a = found.a
    b = found.b
    return [
        ("trajectories", a.trajectories, b.trajectories, ""),
        (
            "pass@1",
            interval_text(a.pass_at_1),
            interval_text(b.pass_at_1),
            interval_text(found.difference, sign=True),
        ),
        (
            "completion tokens",
            plain_text(a.sampled_tokens or NOT_REPORTED),
            plain_text(b.sampled_tokens or NOT_REPORTED),
            (
                interval_text(found.sampled_tokens, sign=True)
                if a.sampled_tokens and b.sampled_tokens
                else ""
            ),
        ),
        (
            "tool errors",
            plain_text(a.tool_errors),
            plain_text(b.tool_errors),
            interval_text(found.tool_errors, sign=True),
        ),
    ]


def comparison_lines(found: Comparison) -> list[str]:
    """Conclusions from the table, as text lines."""
    word = "significant" if found.certain else "within chance"
    lines = [
        f"Problems in both: {found.problems}.",
        f"The difference of pass@1 is {word}: p = {found.p_value:.2g} ({found.test}).",
        f"Problems on which B is right more often: {len(found.better)}, A: {len(found.worse)}.",
        *([SCORED_APART.format(found.scored_apart)] if found.scored_apart else []),
    ]
    for name, ids in (("A", found.only_a), ("B", found.only_b)):
        if ids:
            more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
            lines.append(f"Only in {name}, left out: {', '.join(ids[:_NAMED])}{more}.")
    return lines
