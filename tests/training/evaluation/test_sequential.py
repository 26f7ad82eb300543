"""The sequential test against simulated evaluations, and against the cases that a t-test gets wrong."""

from __future__ import annotations

import math
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm_agent.basics.intervals import Estimate
from hrm_agent.training.evaluation.sequential import Look, look

drawn = st.lists(st.floats(-1, 1, width=16), min_size=1, max_size=30)
MIRRORED = {"better": "worse", "worse": "better", "equal": "equal", None: None}


@given(drawn, st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_the_interval_has_the_mean_and_is_mirrored_with_the_differences(
    differences: list[float], more: int
) -> None:
    planned = len(differences) + more
    found = look(differences, planned)
    mirrored = look([-each for each in differences], planned)
    assert found.difference.value == pytest.approx(fmean(differences))
    assert -1 <= found.difference.low <= found.difference.value <= found.difference.high <= 1
    assert mirrored.difference.low == pytest.approx(-found.difference.high)
    assert mirrored.verdict == MIRRORED[found.verdict]


def test_six_changes_of_one_sign_suffice_before_the_end() -> None:
    assert look([0] * 30 + [1] * 5, 100).verdict is None
    assert look([0] * 30 + [1] * 6, 100).verdict == "better"
    assert look([0] * 30 + [-1] * 6, 100).verdict == "worse"


def test_equal_is_seen_before_the_end_and_only_within_the_margin() -> None:
    assert look([0] * 60, 100).verdict is None
    assert look([0] * 60, 100, margin=0.1).verdict == "equal"
    assert look([0] * 90, 100).verdict == "equal"


def test_the_last_look_finds_mixed_changes() -> None:
    differences = [1, 1, 1, 1, -1, 0, 0, 0, 1, 0] * 10
    few = differences[:40]
    assert look(few, 100).verdict is None
    assert look(few, 40).difference.low > look(few, 100).difference.low
    assert look(differences, 100).verdict == "better"


def test_small_gains_do_not_hide_losses_that_were_not_seen() -> None:
    assert look([0.05] * 20 + [0] * 30, 50).verdict is None
    assert look([0.05] * 20 + [0] * 30, 50).difference.low < 0


def test_a_change_without_effect_is_rarely_found_at_any_look() -> None:
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(120):
        differences = rng.choice([0, 1, -1], size=60, p=[0.8, 0.1, 0.1])
        wrong += any(
            look(differences[:seen], 60).verdict in ("better", "worse") for seen in range(6, 61, 6)
        )
    # 5 % are 6. A 95 % interval of Student at each look is wrong in 14.
    assert wrong <= 6


def test_the_smallest_possible_mean_is_no_division_by_zero() -> None:
    with np.errstate(invalid="raise"):
        assert look([-1] * 8, 20).verdict == "worse"


def test_unchanged_tasks_are_equal_whatever_their_number() -> None:
    assert look([0, 0], 2, unchanged=True) == Look(2, Estimate(0, 0, 0), "equal")
    for wrong in ([0], [0, 0.1]):
        with pytest.raises(ValueError, match="unchanged"):
            look(wrong, 2, unchanged=True)


def test_nothing_is_known_without_tasks() -> None:
    found = look([], 10)
    assert math.isnan(found.difference.value)
    assert (found.difference.low, found.difference.high, found.verdict) == (-1, 1, None)


@pytest.mark.parametrize("wrong", [[1.5], [math.nan], [0, 0, 0]])
def test_values_out_of_range_are_refused(wrong: list[float]) -> None:
    with pytest.raises(ValueError, match="difference"):
        look(wrong, 2)


def test_differences_that_are_not_known_widen_the_interval() -> None:
    known = look([1.0] * 12, 18)
    assert known.verdict == "better"
    found = look([1.0] * 12 + [-1.0] * 6, 18, highest=[1.0] * 12 + [0.0] * 6)
    lowest = look([1.0] * 12 + [-1.0] * 6, 18)
    highest = look([1.0] * 12 + [0.0] * 6, 18)
    assert (found.difference.low, found.difference.high) == (
        lowest.difference.low,
        highest.difference.high,
    )
    assert found.verdict is None and found.difference.value == 0.5
