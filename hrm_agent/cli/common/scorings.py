"""Scores of runs as rows and lines for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hrm_agent.basics.intervals import Estimate
from hrm_agent.training.evaluation.rubrics import FaultCount, RubricComparison

__all__ = ["differing_lines", "fault_rows", "mean_rows", "rubric_comparison_rows"]

_SHOWN = 20
"""Number of listed trajectories of a comparison. The JSON has all."""
_REASON_CHARACTERS = 200


def mean_rows(means: Mapping[str, Estimate]) -> list[Sequence[object]]:
    """Rows of rewards with mean and 95 % interval."""
    return [(name, found.value, found.low, found.high) for name, found in means.items()]


def fault_rows(faults: Iterable[FaultCount]) -> list[Sequence[object]]:
    """Rows of fault kinds, each with an example."""
    return [
        (one.reward, one.fault, one.count, one.trajectory, _short(one.reason)) for one in faults
    ]


def rubric_comparison_rows(found: RubricComparison) -> list[Sequence[object]]:
    """Rows with both sides and their difference."""
    right_a, right_b = (
        found.right["both"] + found.right["a"],
        found.right["both"] + found.right["b"],
    )
    return [
        ("right", right_a, right_b, f"{right_b - right_a:+d}"),
        (
            "outcome",
            *(_interval(one) for one in (found.a_outcome, found.b_outcome)),
            _interval(found.outcome, "+"),
        ),
        (
            "reward",
            *(_interval(one) for one in (found.a_reward, found.b_reward)),
            _interval(found.reward, "+"),
        ),
    ]


def differing_lines(found: RubricComparison) -> Iterator[str]:
    """Conclusions from the table, and the runs on which the rubrics differ."""
    right = found.right
    yield (
        f"{found.trajectories} trajectories of {found.problems} problems have rewards by both:"
        f" {right['both']} are right by both, {right['a']} by A only, {right['b']} by B only,"
        f" {right['neither']} by neither (p = {found.p_value:.2g}, sign flips over problems)."
    )
    for name, count in (("A", found.only_a), ("B", found.only_b)):
        if count:
            yield f"{count} have a reward by {name} only, and were left out."
    for one in found.differing[:_SHOWN]:
        yield (
            f"{one.trajectory} ({one.task}): A {one.a:g}{_because(one.a_reason)}; B"
            f" {one.b:g}{_because(one.b_reason)}"
        )
    if len(found.differing) > _SHOWN:
        yield f"and {len(found.differing) - _SHOWN} more; --json lists all."


def _because(reason: str) -> str:
    return f" ({_short(reason)})" if reason else ""


def _short(reason: str) -> str:
    line = " ".join(reason.split())
    return line if len(line) <= _REASON_CHARACTERS else f"{line[:_REASON_CHARACTERS]} ..."


def _interval(found: Estimate, sign: str = "") -> str:
    form = f"{sign}.3f"
    return f"{found.value:{form}}  ({found.low:{form}} to {found.high:{form}})"
