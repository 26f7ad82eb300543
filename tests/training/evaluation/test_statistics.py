"""The estimators against brute force, and the intervals and the test against many simulated
evaluations.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm_agent.basics.intervals import bootstrapped, wilson_interval
from hrm_agent.training.evaluation.statistics import (
    AnswerTally,
    majority_curve,
    pass_at_k,
    pass_curve,
    sign_flip_p,
)

drawn = st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=1, max_size=7)
differences = st.lists(st.fractions(-1, 1, max_denominator=9), max_size=8)


@given(st.lists(st.booleans(), min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample(samples: list[bool]) -> None:
    n, c = len(samples), sum(samples)
    for k, found in enumerate(pass_curve(n, c), 1):
        assert found == pytest.approx(fmean(any(s) for s in itertools.combinations(samples, k)))


def test_pass_at_k_of_many_samples_is_exact() -> None:
    assert pass_at_k(1000, 1, 500) == 0.5
    assert pass_at_k(2000, 3, 1999) == 1.0
    assert pass_curve(100, 7) == sorted(pass_curve(100, 7))
    for n, c, k in ((3, 4, 1), (3, 1, 0), (3, 1, 4), (3, -1, 1)):
        with pytest.raises(ValueError, match="pass@k takes"):
            pass_at_k(n, c, k)


def vote_of(subset: tuple[str, ...], right: str) -> float:
    """Credit for the plurality of a subset, a tie drawn at random; the empty answer is no vote."""
    counts = Counter(answer for answer in subset if answer)
    leading = [answer for answer, times in counts.items() if times == max(counts.values())]
    return leading.count(right) / len(leading) if leading else 0.0


@given(drawn)
@settings(max_examples=40, deadline=None)
def test_majority_at_k_is_the_mean_vote_over_subsets(samples: list[str]) -> None:
    counts = Counter(samples)
    none = counts.pop("", 0)
    curve = majority_curve(
        AnswerTally(tuple((times, float(answer == "a")) for answer, times in counts.items()), none)
    )
    for k, found in enumerate(curve, 1):
        assert found == pytest.approx(
            fmean(vote_of(subset, "a") for subset in itertools.combinations(samples, k))
        )
    assert curve[0] == pytest.approx(samples.count("a") / len(samples)), "one vote is one sample"


def test_a_majority_can_be_better_or_worse_than_one_sample() -> None:
    leading, trailing = AnswerTally(((5, 1.0), (3, 0.0))), AnswerTally(((3, 1.0), (5, 0.0)))
    assert majority_curve(leading)[-1] == 1 and majority_curve(trailing)[-1] == 0
    assert majority_curve(AnswerTally(((4, 0.5),)))[-1] == 0.5, (
        "equal texts of which a verifier takes every other one"
    )
    assert majority_curve(AnswerTally((), 3)) == [0, 0, 0]
    assert majority_curve(AnswerTally(((32, 1.0), (16, 0.0), (1, 0.0)), 15))[-1] == 1


def test_intervals_hold_the_truth_in_95_of_100_evaluations() -> None:
    """Problems of different difficulty, four samples of each: 200 evaluations of 60 problems."""
    rng = np.random.default_rng(0)
    held = 0
    for seed in range(200):
        difficulty_P = rng.beta(1, 2, size=60)
        (found,) = bootstrapped([rng.binomial(4, difficulty_P) / 4], seed=seed, resamples=300)
        held += found.low <= 1 / 3 <= found.high
    assert 0.92 <= held / 200 <= 0.98


def test_where_problems_agree_the_interval_is_wilsons() -> None:
    zero, half, mixed = bootstrapped([[0] * 10, [0.5] * 10, [0, 1] * 5], seed=0, resamples=200)
    assert (zero.value, zero.low, zero.high) == (0, *wilson_interval(0, 10)) and zero.high > 0.2
    assert (half.low, half.high) == wilson_interval(5, 10)
    assert mixed.low < mixed.value == 0.5 < mixed.high
    (nothing,) = bootstrapped([[]], seed=0, resamples=10)
    assert math.isnan(nothing.value) and (nothing.low, nothing.high) == (0, 1)


@given(differences)
@settings(max_examples=40, deadline=None)
def test_the_paired_test_is_the_share_of_flips_that_are_as_extreme(found: list[Fraction]) -> None:
    steps = math.lcm(*(d.denominator for d in found))  # of 1 to 9: at most 2520
    sizes = np.array([int(d * steps) for d in found], dtype=int)
    flips = np.array(list(itertools.product((1, -1), repeat=len(found)))).reshape(
        2 ** len(found), -1
    )
    assert sign_flip_p(found) == pytest.approx(np.mean(np.abs(flips @ sizes) >= abs(sizes.sum())))


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=40, deadline=None)
def test_with_one_sample_a_side_it_is_mcnemars_exact_test(
    better: int, worse: int, same: int
) -> None:
    n, fewer = better + worse, min(better, worse)
    mcnemar = min(1.0, 2 * sum(math.comb(n, i) for i in range(fewer + 1)) / 2**n)
    found = sign_flip_p([Fraction(1)] * better + [Fraction(-1)] * worse + [Fraction(0)] * same)
    assert found == pytest.approx(mcnemar)


def test_the_paired_test_rejects_a_true_null_one_time_in_twenty_at_most() -> None:
    rng = np.random.default_rng(1)
    low = 0
    for _ in range(200):
        share_P = rng.beta(1, 1, size=40)
        a, b = rng.binomial(4, share_P), rng.binomial(4, share_P)
        low += (
            sign_flip_p(
                [Fraction(int(x), 4) - Fraction(int(y), 4) for x, y in zip(a, b, strict=True)]
            )
            <= 0.05
        )
    assert 0.01 <= low / 200 <= 0.075
    assert sign_flip_p([Fraction(1, 3)] * 30) < 1e-8
