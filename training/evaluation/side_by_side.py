"""Any number of evaluations of the same problems, side by side.

Only problems that every evaluation has finished are compared, so that each row of the table is
about the same problems. Each evaluation is compared with the first one, as in
`hrm_agent.training.evaluation.compare`. Several comparisons are several chances of a small p-value.
So p-values are also given with Holm's correction (Holm 1979, Scandinavian Journal of Statistics 6),
which bounds the probability of one or more false discoveries. Intervals are not corrected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import pvariance

from hrm_agent.basics.intervals import Estimate
from hrm_agent.errors import RunError
from hrm_agent.training.evaluation.compare import (
    SCORED_APART,
    ComparedRun,
    Comparison,
    compare,
    ended_by_problem,
    share_right,
)
from hrm_agent.training.evaluation.prices import Prices, cost_of
from hrm_agent.training.evaluation.samples import Effort, Problem, Sample
from hrm_agent.training.evaluation.tables import NOT_REPORTED, Row, plain_text

__all__ = [
    "DifferingProblem",
    "EvaluationRow",
    "SideBySide",
    "differing_rows",
    "holm",
    "side_by_side",
    "side_by_side_lines",
    "side_by_side_rows",
]

SHOWN = 20
"""Maximum number of differing problems in the text. The JSON has all."""
_PROMPT = 60
_LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """Results of one evaluation, on the problems that all evaluations have."""

    name: str
    """Name by which the user gave the evaluation: a folder, a store or a file."""
    trajectories: int
    """Number of ended trajectories on these problems."""
    pass_at_1: Estimate
    """Mean over problems of the share of right samples."""
    sampled_tokens: float
    """Completion tokens per trajectory: mean over problems."""
    tool_errors: float
    """Tool calls per trajectory that failed through the policy's fault: mean over problems."""
    cost: float | None
    """Cost of these trajectories by the given prices, else as providers reported it (None if
    neither is known).
    """
    difference: Estimate | None
    """Difference of pass@1 to the first evaluation, resampled over pairs (None for the first)."""
    p_value: float | None
    """Two-sided p-value of no difference to the first evaluation (None for the first)."""
    corrected_p_value: float | None
    """The p-value with Holm's correction for all comparisons of the table (None for the first)."""
    better: int
    """Number of problems that this evaluation answers right more often than the first."""
    worse: int
    """Number of problems that the first evaluation answers right more often."""
    left_out: int
    """Number of its problems that another evaluation lacks."""

    @property
    def certain(self) -> bool:
        """True if the difference to the first is significant at the 5 % level, corrected."""
        return self.corrected_p_value is not None and self.corrected_p_value < _LEVEL


@dataclass(frozen=True, slots=True)
class DifferingProblem:
    """Problem that the evaluations do not all answer equally."""

    id: str
    """Id of the problem."""
    prompt_hash: str
    """Hash of the prompt."""
    prompt: str
    """Beginning of the prompt (empty if unknown)."""
    right: tuple[float, ...]
    """Share of right samples of each evaluation, in the order of the table."""


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Evaluations side by side, the first of which is the baseline."""

    evaluations: tuple[EvaluationRow, ...]
    """Rows of the table, in the given order."""
    problems: int
    """Number of problems that all evaluations have."""
    test: str
    """Name of the test that gave the p-values."""
    scored_apart: int
    """Number of problems with an answer that is right in the first and wrong in another, or the
    reverse (the largest of the comparisons).
    """
    differing: tuple[DifferingProblem, ...]
    """Problems on which evaluations differ. Those that divide them most evenly come first."""


def side_by_side(
    given: Sequence[Sequence[Sample]],
    names: Sequence[str],
    *,
    prompts: Mapping[Problem, str] | None = None,
    prices: Prices | None = None,
    seed: int = 0,
    resamples: int = 10_000,
) -> SideBySide:
    """Compare two or more evaluations, whose `names` are shown. `prompts`: beginnings of the
    prompts by problem. Raises `RunError` if no problem has an ended trajectory in all.
    """
    ended = [ended_by_problem(samples, name) for samples, name in zip(given, names, strict=True)]
    shared = set.intersection(*(set(groups) for groups in ended))
    if not shared:
        raise RunError(
            f"{', '.join(names[:-1])} and {names[-1]} have no problem that is in all of them.",
            "Evaluate all on the same --tasks, --split, --count and --seed.",
        )
    problems = sorted(shared)
    kept = [[s for problem in problems for s in groups[problem]] for groups in ended]
    compared = [
        compare(kept[0], other, (names[0], name), seed=seed, resamples=resamples)
        for other, name in zip(kept[1:], names[1:], strict=True)
    ]
    corrected = holm([each.p_value for each in compared])
    left_out = [len(groups) - len(problems) for groups in ended]
    costs = [_cost(samples, prices) for samples in kept]
    rows = [_row(compared[0].a, None, None, costs[0], left_out[0])]
    for number, (each, p_value) in enumerate(zip(compared, corrected, strict=True), 1):
        rows.append(_row(each.b, each, p_value, costs[number], left_out[number]))
    shares = {problem: [share_right(groups[problem]) for groups in ended] for problem in problems}
    return SideBySide(
        tuple(rows),
        len(problems),
        " or ".join(dict.fromkeys(each.test for each in compared)),
        max(each.scored_apart for each in compared),
        _differing(shares, prompts or {}),
    )


def _row(
    own: ComparedRun,
    found: Comparison | None,
    corrected: float | None,
    cost: float | None,
    left_out: int,
) -> EvaluationRow:
    """Row of one evaluation. `found`: its comparison with the first (None for the first)."""
    return EvaluationRow(
        name=own.name,
        trajectories=own.trajectories,
        pass_at_1=own.pass_at_1,
        sampled_tokens=own.sampled_tokens,
        tool_errors=own.tool_errors,
        cost=cost,
        difference=None if found is None else found.difference,
        p_value=None if found is None else found.p_value,
        corrected_p_value=corrected,
        better=0 if found is None else len(found.better),
        worse=0 if found is None else len(found.worse),
        left_out=left_out,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number, by Holm's step-down method."""
    found = [1.0] * len(p_values)
    most = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        most = max(most, min(1.0, (len(p_values) - rank) * p_values[index]))
        found[index] = most
    return found


def _cost(samples: Sequence[Sample], prices: Prices | None) -> float | None:
    effort = sum((sample.effort for sample in samples), Effort())
    if prices is not None:
        return cost_of(effort.tokens, prices)
    return None if math.isnan(effort.reported_cost) else effort.reported_cost


def _differing(
    shares: Mapping[Problem, Sequence[Fraction]], prompts: Mapping[Problem, str]
) -> tuple[DifferingProblem, ...]:
    found = [
        (-pvariance(of_each), problem.id, problem, of_each)
        for problem, of_each in shares.items()
        if len({*of_each}) > 1
    ]
    found.sort(key=lambda each: each[:2])
    return tuple(
        DifferingProblem(
            problem.id, problem.prompt_hash, prompts.get(problem, ""), tuple(map(float, of_each))
        )
        for _, _, problem, of_each in found
    )


def side_by_side_rows(found: SideBySide) -> tuple[list[str], list[Row]]:
    """Table as (columns, rows)."""
    priced = any(each.cost is not None for each in found.evaluations)
    columns = ["", "evaluation", "pass@1", f"less {letter(0)}", "p", "p (Holm)"]
    columns += ["better", "worse", "completion tokens", "tool errors", *(["cost"] * priced)]
    rows: list[Row] = []
    for number, each in enumerate(found.evaluations):
        first = each.difference is None
        cost = [""] if each.cost is None else [f"{each.cost:.6g}"]
        rows.append(
            [
                letter(number),
                each.name,
                _short_interval(each.pass_at_1),
                "" if each.difference is None else _short_interval(each.difference, sign=True),
                "" if each.p_value is None else f"{each.p_value:.2g}",
                "" if each.corrected_p_value is None else f"{each.corrected_p_value:.2g}",
                "" if first else each.better,
                "" if first else each.worse,
                f"{each.sampled_tokens:.1f}" if each.sampled_tokens else NOT_REPORTED,
                plain_text(each.tool_errors),
                *(cost * priced),
            ]
        )
    return columns, rows


def side_by_side_lines(found: SideBySide) -> list[str]:
    """Conclusions from the table, as text lines."""
    certain = [letter(n) for n, each in enumerate(found.evaluations) if each.certain]
    count = len(found.evaluations) - 1
    lines = [
        (
            f"Problems in all evaluations: {found.problems}. Intervals are 95 % and paired; p is by"
            f" the test {found.test}."
        ),
        (
            f"Holm's correction for {count} comparisons is in the column p (Holm), and not in the"
            " intervals."
        ),
        (
            f"Significantly different from A: {', '.join(certain)}."
            if certain
            else "No difference to A is significant."
        ),
    ]
    if found.scored_apart:
        lines.append(SCORED_APART.format(found.scored_apart))
    for number, each in enumerate(found.evaluations):
        if each.left_out:
            lines.append(
                f"Problems of {letter(number)} that are left out, since another evaluation lacks"
                f" them: {each.left_out}."
            )
    if not found.differing:
        lines.append("The evaluations are right on the same problems.")
    elif len(found.differing) > SHOWN:
        lines.append(
            f"{len(found.differing)} problems differ; the {SHOWN} that divide the evaluations most"
            " evenly are listed, and --json has all."
        )
    return lines


def differing_rows(found: SideBySide) -> tuple[list[str], list[Row]]:
    """Table of differing problems as (columns, rows), the first `SHOWN` of them."""
    letters = [letter(number) for number in range(len(found.evaluations))]
    rows: list[Row] = [
        (each.id, _cut(each.prompt), *map(_right, each.right)) for each in found.differing[:SHOWN]
    ]
    return ["problem", "prompt", *letters], rows


def letter(number: int) -> str:
    """Name of a row: A to Z, then A1 and so on."""
    return chr(ord("A") + number % 26) + (str(number // 26) if number >= 26 else "")


def _right(share: float) -> str:
    return {0.0: "wrong", 1.0: "right"}.get(share, f"{share:.2f}")


def _cut(prompt: str) -> str:
    line = " ".join(prompt.split())
    return line if len(line) <= _PROMPT else f"{line[:_PROMPT]}..."


def _short_interval(found: Estimate, *, sign: bool = False) -> str:
    form = "+.3f" if sign else ".3f"
    return f"{found.value:{form}} ({found.low:{form}} to {found.high:{form}})"
