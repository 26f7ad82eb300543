"""Sequential test of paired differences, with an interval that is valid at every look.

A repeated run costs requests, so the comparison of an old and a new agent should end as soon as its
result is clear. Looking at an ordinary interval after each batch, and stopping at the first that
excludes 0, would be wrong far more often than in 5 % of all cases.

    difference    new less old score of one task, in [-1, 1]: the mean over the task's runs and
                  samples, since those of one task are not independent
    better        the interval lies above 0
    worse         the interval lies below 0
    equal         the interval lies within the margin around 0
    None          not clear: go on, or "undecided" after the last task

While tasks remain, the interval is a confidence sequence by betting (Waudby-Smith and Ramdas 2024,
"Estimating means of bounded random variables by betting", JRSS B 86(1), arXiv 2010.09686). A mean m
is a hypothesis, and a gambler bets a capital of 1 on differences above m. If m is right, the game is
fair, and the capital ever reaches 50 with a probability of at most 1/50 (Ville's inequality). So the
interval has the means against which less was won, and it is valid whenever one stops. The stakes are
fixed shares of the largest possible stake, and the capital is divided between them beforehand.
Deviation from the paper, whose stakes follow the variance seen so far: most differences are 0, and
few have the other sign, so the largest stake has most of the capital. Six differences of 1 and none
below 0 then suffice, as in McNemar's exact test after the last task.

After the last planned task, the interval of Student's t is taken as well, and both hold together: 4
of the 5 % belong to the sequence and 1 to the last look. Student's interval alone is too narrow if
large losses are rare, so that none was seen. Its lower end is calculated with one more difference of
-1, and its upper end with one more of 1.

Assumption: the tasks are in random order, and represent the tasks of the agent. docs/gate.md has the
error rates, found by simulation in benchmarks/gate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from hrm_agent.basics.intervals import Estimate

__all__ = ["Look", "Verdict", "look"]

Verdict = Literal["better", "worse", "equal"]

_SHARES = np.array([[0.1], [0.3], [0.5], [0.7], [0.9], [1.0]])
"""Stakes, as shares of the stake that can lose the whole capital."""
_LOG_CAPITALS = np.log([0.06, 0.06, 0.06, 0.06, 0.06, 0.7])
"""Logarithm of the part of the capital that each stake begins with."""
_OF_SEQUENCE = 0.8
"""Share of the level that belongs to the looks before the last one."""
_FEWEST = 10
"""Minimum number of tasks of Student's interval."""
_HALVINGS = 40


@dataclass(frozen=True, slots=True)
class Look:
    """Result of a look at the differences so far."""

    tasks: int
    """Number of tasks compared."""
    difference: Estimate
    """Mean difference with its interval, which contains the mean ((-1, 1) without tasks)."""
    verdict: Verdict | None
    """Verdict that follows from the interval (None: it is not clear)."""


def look(
    differences: Sequence[float],
    planned: int,
    *,
    margin: float = 0.05,
    level: float = 0.05,
    unchanged: bool = False,
    highest: Sequence[float] | None = None,
) -> Look:
    """Look at the differences of the first tasks, in [-1, 1] and in the tasks' random order.

    `planned`: number of tasks, which was fixed before the first look. `margin`: largest difference
    that is regarded as none. `level`: probability that the interval is wrong at any look.
    `unchanged`: all planned tasks were repeated, and no request differed. Their difference is
    exactly 0, whatever their number. `highest`: the largest that each difference can be, if some
    are not known (None: all are known). `differences` has the smallest then, and the interval holds
    for every value between. Raises `ValueError` for values out of range.
    """
    values = np.asarray(differences, dtype=float)
    upper = values if highest is None else np.asarray(highest, dtype=float)
    if len(values) > planned or len(upper) != len(values):
        raise ValueError(f"{len(values)} differences of {planned} planned tasks")
    # sums of weighted rewards are rounded
    if not bool((np.abs([values, upper]) <= 1 + 1e-9).all()):
        raise ValueError("a difference is not a number from -1 to 1")
    if unchanged:
        if len(values) != planned or bool(values.any()):
            raise ValueError("unchanged tasks without the difference 0")
        return Look(planned, Estimate(0.0, 0.0, 0.0), "equal")
    if not planned or not len(values):
        return Look(0, Estimate(math.nan, -1.0, 1.0), None)
    values = values.clip(-1, 1)
    upper = upper.clip(-1, 1)
    last = len(values) == planned >= _FEWEST
    sequence = level * _OF_SEQUENCE
    low = _lower_end(values, sequence)
    high = -_lower_end(-upper, sequence)
    if last:
        low = max(low, _last_lower_end(values, level - sequence))
        high = min(high, -_last_lower_end(-upper, level - sequence))
    found = Estimate(float(values.mean() + upper.mean()) / 2, low, high)
    return Look(len(values), found, _verdict(found, margin))


def _verdict(found: Estimate, margin: float) -> Verdict | None:
    if found.low > 0:
        return "better"
    if found.high < 0:
        return "worse"
    return "equal" if -margin <= found.low and found.high <= margin else None


def _lower_end(values: Any, level: float) -> float:
    """Largest mean that is excluded by the capital won against it, to 12 decimals."""
    needed = math.log(2 / level)
    low = -1.0
    high = float(values.mean())  # nothing is won against this mean
    if high == low:
        return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _log_capital(values, middle) >= needed:
            low = middle
        else:
            high = middle
    return low


def _log_capital(values: Any, mean: float) -> float:
    """Logarithm of the capital after bets on differences above `mean`, which is above -1."""
    with np.errstate(divide="ignore"):  # the stake of everything can lose everything
        won = np.log1p(_SHARES * (values - mean) / (1 + mean)).sum(axis=1)
    return float(np.logaddexp.reduce(_LOG_CAPITALS + won))


def _last_lower_end(values: Any, level: float) -> float:
    """Lower end of Student's interval, with one more difference of -1."""
    seen = np.append(values, -1.0)
    error = float(seen.std(ddof=1)) / math.sqrt(len(seen))
    return max(-1.0, float(seen.mean()) - _student(1 - level / 2, len(values)) * error)


def _student(probability: float, freedom: int) -> float:
    """Quantile of Student's t with at least `_FEWEST` degrees of freedom, to two decimals
    (Abramowitz and Stegun 1964, 26.7.5).
    """
    z = NormalDist().inv_cdf(probability)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2
