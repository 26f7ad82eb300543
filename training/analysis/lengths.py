"""Length and correctness of answers, by length and by step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from hrm_agent.basics.intervals import wilson_interval
from hrm_agent.training.analysis.facts import RolloutFacts

__all__ = ["LengthBin", "LengthRow", "length_bins", "length_rows", "mean_tokens"]

_BINS = 8


@dataclass(frozen=True, slots=True)
class LengthBin:
    """Rollouts of similar length."""

    least: int
    """Smallest number of completion tokens in the bin."""
    most: int
    """Largest number of completion tokens in the bin."""
    rollouts: int
    """Number of rollouts in the bin."""
    accuracy: float
    """Share of right ones among them."""
    interval: tuple[float, float]
    """95 % interval of `accuracy` (Wilson). It treats rollouts as independent, which siblings of a
    group are not quite.
    """


@dataclass(frozen=True, slots=True)
class LengthRow:
    """Lengths in one part of a run."""

    part: str
    """Name of the part."""
    step: int | None
    """Training step, counted from 1 (None outside of training)."""
    accuracy: float
    """Share of right ones among its scored rollouts."""
    correct: float
    """Mean completion tokens of correct rollouts (nan without any)."""
    wrong: float
    """Mean completion tokens of wrong rollouts (nan without any)."""


def length_bins(facts: Iterable[RolloutFacts], bins: int = _BINS) -> list[LengthBin]:
    """Bins of about equal numbers of rollouts. Equal lengths share a bin."""
    known = sorted(
        (each.tokens, each.correct) for each in facts if each.tokens is not None and each.scored
    )
    found: list[LengthBin] = []
    start = 0
    for number in range(1, bins + 1):
        stop = max(start, round(number * len(known) / bins))
        while 0 < stop < len(known) and known[stop][0] == known[stop - 1][0]:
            stop += 1
        if stop > start:
            found.append(_bin(known[start:stop]))
            start = stop
    return found


def length_rows(facts: Sequence[RolloutFacts]) -> list[LengthRow]:
    """One row for each part with a scored rollout, in the order of the facts."""
    parts: dict[str, list[RolloutFacts]] = {}
    for each in facts:
        if each.scored:
            parts.setdefault(each.part, []).append(each)
    return [
        LengthRow(
            part=name,
            step=of_part[0].step,
            accuracy=fmean(float(each.correct) for each in of_part),
            correct=mean_tokens(of_part, correct=True),
            wrong=mean_tokens(of_part, correct=False),
        )
        for name, of_part in parts.items()
    ]


def mean_tokens(facts: Iterable[RolloutFacts], *, correct: bool) -> float:
    """Mean completion tokens of the correct or the wrong rollouts (nan if none is known)."""
    known = [each.tokens for each in facts if each.correct is correct and each.tokens is not None]
    return fmean(known) if known else math.nan


def _bin(known: Sequence[tuple[int, bool]]) -> LengthBin:
    right = sum(correct for _, correct in known)
    return LengthBin(
        known[0][0],
        known[-1][0],
        len(known),
        right / len(known),
        wilson_interval(right, len(known)),
    )
