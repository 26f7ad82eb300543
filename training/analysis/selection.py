"""Effects of selection: all rollouts of a training compared with the kept rollouts, and the reasons
why the others were dropped.

Every algorithm rejects groups with equal rewards as a whole. So the effect of choosing rollouts
within a group is measured against the rollouts of groups that taught something, not against all
rollouts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from hrm_agent.training.analysis.facts import RolloutFacts, mean_tokens
from hrm_agent.trajectory import Verdict

__all__ = [
    "DropRow",
    "SelectedShare",
    "drop_rows",
    "selected_shares",
]


@dataclass(frozen=True, slots=True)
class SelectedShare:
    """Values of one measure over all rollouts, over the rollouts of groups that taught something,
    and over the kept rollouts.
    """

    measure: str
    """Name of the measure."""
    all: float
    """Value over all rollouts of all steps."""
    in_groups: float
    """Value over the rollouts of groups with a kept rollout."""
    kept: float
    """Value over the rollouts that were trained on."""


@dataclass(frozen=True, slots=True)
class DropRow:
    """Rollouts left out for one reason."""

    verdict: str
    """Verdict on these rollouts."""
    reason: str
    """Type of the reason."""
    rollouts: int
    """Number of rollouts."""
    correct: int
    """Number of right rollouts among them."""


def selected_shares(facts: Iterable[RolloutFacts]) -> list[SelectedShare]:
    """Compare all rollouts with the kept rollouts, by measure (empty if nothing was selected)."""
    judged = [each for each in facts if each.verdict is not None]
    if not judged:
        return []
    in_groups = [each for each in judged if each.verdict != Verdict.GROUP_REJECTED]
    kept = [each for each in judged if each.verdict == Verdict.KEPT]
    return [
        SelectedShare(name, measure(judged), measure(in_groups), measure(kept))
        for name, measure in _MEASURES
    ]


def drop_rows(facts: Iterable[RolloutFacts]) -> list[DropRow]:
    """Numbers of dropped rollouts by reason, most common first."""
    total: Counter[tuple[str, str]] = Counter()
    right: Counter[tuple[str, str]] = Counter()
    for each in facts:
        if each.verdict not in (None, Verdict.KEPT):
            why = str(each.verdict), each.drop_reason or "not on record"
            total[why] += 1
            right[why] += each.correct
    return [DropRow(*why, count, right[why]) for why, count in total.most_common()]


_Facts = Sequence[RolloutFacts]


def _share(
    facts: _Facts, holds: Callable[[RolloutFacts], bool], *, correct: bool | None = None
) -> float:
    of = [float(holds(each)) for each in facts if correct is None or each.correct is correct]
    return fmean(of) if of else math.nan


_MEASURES: tuple[tuple[str, Callable[[_Facts], float]], ...] = (
    ("rollouts", lambda facts: float(len(facts))),
    ("correct", lambda facts: _share(facts, lambda each: each.correct)),
    (
        "tool error, among the correct",
        lambda facts: _share(facts, lambda each: each.failed, correct=True),
    ),
    (
        "tool error, among the wrong",
        lambda facts: _share(facts, lambda each: each.failed, correct=False),
    ),
    (
        "format fault, among the correct",
        lambda facts: _share(facts, lambda e: e.penalty_format > 0, correct=True),
    ),
    (
        "call without use or repeated, among the correct",
        lambda f: _share(f, lambda e: e.padding > 0, correct=True),
    ),
    (
        "no tool call, among the correct",
        lambda f: _share(f, lambda e: not e.statuses, correct=True),
    ),
    ("completion tokens of the correct, mean", lambda facts: mean_tokens(facts, correct=True)),
    ("completion tokens of the wrong, mean", lambda facts: mean_tokens(facts, correct=False)),
)
"""Measures as (name, function)."""
