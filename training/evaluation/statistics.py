"""Estimators and tests over problems, on plain numbers.

Several samples of one problem are not independent, so every bootstrap and test resamples
*problems*.

    pass@k        1 - C(n - c, k) / C(n, k) for n samples of which c are correct: the share of
                  the k-subsets of a problem's samples that hold a correct one. Unbiased for
                  every k up to n (Chen et al. 2021, arXiv 2107.03374, equation 1);
                  1 - (1 - c/n)^k is not.
    majority@k    the share of the k-subsets in which the most frequent answer is correct; of
                  equally frequent answers one is drawn (Wang et al. 2022, arXiv 2203.11171,
                  names the vote; the mean over all subsets is exact here, where one usually
                  draws some)
    intervals     those of `hrm_agent.basics.intervals`, with the problem as the unit
    comparison    problems are paired, and the sign of each difference is flipped with
                  probability 1/2: exact, by convolution. With one sample a side this is
                  McNemar's exact test (a binomial over discordant pairs)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

__all__ = [
    "AnswerTally",
    "majority_curve",
    "pass_at_k",
    "pass_curve",
    "shown_ks",
    "sign_flip_p",
]

_MAX_STEPS = 10_000
"""Maximum of the common denominator of differences in the permutation test. Finer differences are
rounded.
"""


@dataclass(frozen=True, slots=True)
class AnswerTally:
    """Answers to one problem, with equal answers counted together."""

    given: tuple[tuple[int, float], ...]
    """Number of samples of each answer, and the share of these samples that is right (mostly 0 or
    1).
    """
    none: int = 0
    """Number of samples without an answer. They are drawn like the others, but have no vote."""

    @property
    def samples(self) -> int:
        return self.none + sum(times for times, _ in self.given)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that k of n samples, drawn without replacement, contain a correct one, if c are
    correct. Raises `ValueError` for values out of range.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass@k takes 0 <= c <= n and 1 <= k <= n, not n={n}, c={c}, k={k}")
    return float(1 - Fraction(math.comb(n - c, k), math.comb(n, k)))


def pass_curve(n: int, c: int) -> list[float]:
    """Values of pass@1 to pass@n."""
    return [pass_at_k(n, c, k) for k in range(1, n + 1)]


def shown_ks(samples: int) -> list[int]:
    """Values of k for a table: powers of two up to 256, and the largest."""
    return sorted({k for k in (1, 2, 4, 8, 16, 32, 64, 128, 256, samples) if 1 <= k <= samples})


def majority_curve(answers: AnswerTally) -> list[float]:
    """Values of majority@1 to majority@n of one problem."""
    n = answers.samples
    credit = np.zeros(n + 1)
    for top in range(1, max((times for times, _ in answers.given), default=0) + 1):
        credit += _won_with(answers, top)
    return [float(credit[k] / math.comb(n, k)) for k in range(1, n + 1)]


def _won_with(answers: AnswerTally, top: int) -> Any:
    """Sum, for each k, over the k-subsets in which the most frequent answers occur `top` times. The
    summand is the share of right answers among the most frequent.

    `ways[k, t]` counts the draws of k samples in which t answers occur `top` times and no answer
    occurs more often. `right[k, t]` is the number of right answers among these t, summed over the
    same draws. Answers are added one after another.
    """
    n = answers.samples
    ties = n // top
    ways, right = np.zeros((2, n + 1, ties + 1))
    ways[: answers.none + 1, 0] = [
        math.comb(answers.none, drawn) for drawn in range(answers.none + 1)
    ]
    for times, share in answers.given:
        old_ways = ways
        old_right = right
        ways = np.zeros_like(ways)
        right = np.zeros_like(right)
        for drawn in range(min(times, top) + 1):
            choices = math.comb(times, drawn)
            leads = drawn == top
            to = np.s_[drawn:, 1:] if leads else np.s_[drawn:, :]
            of = np.s_[: n + 1 - drawn, :-1] if leads else np.s_[: n + 1 - drawn, :]
            ways[to] += choices * old_ways[of]
            right[to] += choices * (old_right[of] + (share * old_ways[of] if leads else 0))
    return (right[:, 1:] / np.arange(1, ties + 1)).sum(axis=1)


def sign_flip_p(differences: Sequence[Fraction]) -> float:
    """Two-sided p-value of `differences` under the hypothesis that both signs of each difference
    are equally likely (1 without differences).
    """
    steps = min(_MAX_STEPS, math.lcm(*(d.denominator for d in differences))) if differences else 1
    sizes = [size for d in differences if (size := abs(round(d * steps)))]
    seen = abs(sum(round(d * steps) for d in differences))
    reach = sum(sizes)
    chance = np.zeros(2 * reach + 1)  # probability of each sum from -reach to reach
    chance[reach] = 1.0
    for size in sizes:
        # the values that `roll` wraps around are all 0
        chance = (np.roll(chance, size) + np.roll(chance, -size)) / 2
    extreme = np.abs(np.arange(-reach, reach + 1)) >= seen
    return min(1.0, float(chance[extreme].sum()))
