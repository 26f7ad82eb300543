"""Error rates of the sequential test on simulated differences, against tests of all runs.

Differences of N tasks are drawn with known shares of 1 and -1. Compared are

    sequential    `look` after every fifth task
    bootstrap     percentiles of the mean of all tasks, resampled
    McNemar       the exact test of all tasks
    every look    Student's 95 % interval after every fifth task, from the tenth on, which stops at
                  the first that excludes 0
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from hrm_agent.basics.intervals import bootstrapped, mean_interval
from hrm_agent.training.evaluation.sequential import look
from hrm_agent.training.evaluation.statistics import sign_flip_p

__all__ = ["error_rates"]

Row = dict[str, Any]
SCENARIOS = {
    "no difference": (0.0, 0.0),
    "2 % changed": (0.01, 0.01),
    "20 % changed": (0.1, 0.1),
    "10 % better": (0.1, 0.0),
    "20 % better": (0.2, 0.0),
    "30 % better": (0.3, 0.0),
    "25 % better, 5 % worse": (0.25, 0.05),
    "30 % better, 10 % worse": (0.3, 0.1),
    "10 % worse": (0.0, 0.1),
    "20 % worse": (0.0, 0.2),
}
"""Shares of the tasks whose difference is 1 and -1."""
BETWEEN_LOOKS = 5
FEWEST = 10
MARGIN = 0.05
Found = tuple[str, int]
"""Verdict, and the number of tasks that it took."""


def error_rates(draws: int, tasks: int = 100, seed: int = 0) -> Row:
    """Share of each verdict and mean number of tasks, by scenario and test."""
    tests: dict[str, Callable[[Sequence[int]], Found]] = {
        "sequential": sequential,
        "bootstrap": bootstrap,
        "McNemar": mcnemar,
        "every look": every_look,
    }
    found: Row = {}
    for name, (better, worse) in SCENARIOS.items():
        rng = np.random.default_rng(seed)
        drawn = [
            rng.choice([0, 1, -1], size=tasks, p=[1 - better - worse, better, worse]).tolist()
            for _ in range(draws)
        ]
        found[name] = {test: _summary([run(each) for each in drawn]) for test, run in tests.items()}
    return found


def _summary(found: Sequence[Found]) -> Row:
    verdicts = Counter(verdict for verdict, _ in found)
    return {
        **{verdict: count / len(found) for verdict, count in sorted(verdicts.items())},
        "tasks": sum(tasks for _, tasks in found) / len(found),
    }


def sequential(differences: Sequence[int]) -> Found:
    """Verdict of the first clear look."""
    planned = len(differences)
    for seen in range(BETWEEN_LOOKS, planned + 1, BETWEEN_LOOKS):
        if verdict := look(differences[:seen], planned, margin=MARGIN).verdict:
            return verdict, seen
    return "undecided", planned


def bootstrap(differences: Sequence[int]) -> Found:
    """Verdict of the resampled interval of all tasks."""
    (found,) = bootstrapped([differences], seed=0, resamples=1000, shares=False)
    if found.low > 0 or found.high < 0:
        return "better" if found.low > 0 else "worse", len(differences)
    within = found.low >= -MARGIN and found.high <= MARGIN
    return "equal" if within else "undecided", len(differences)


def mcnemar(differences: Sequence[int]) -> Found:
    """Verdict of the exact test of all tasks, which has no "equal"."""
    if sign_flip_p([Fraction(each) for each in differences]) >= 0.05:
        return "undecided", len(differences)
    return "better" if sum(differences) > 0 else "worse", len(differences)


def every_look(differences: Sequence[int]) -> Found:
    """Verdict of the first of many looks at an interval that is valid for one."""
    for seen in range(FEWEST, len(differences) + 1, BETWEEN_LOOKS):
        found = mean_interval([float(each) for each in differences[:seen]])
        if found.low > 0 or found.high < 0:
            return "better" if found.low > 0 else "worse", seen
    return "undecided", len(differences)
