"""Room that a policy sees: the sums of the fast tables against the formula, engine by engine."""

from __future__ import annotations

import math
import random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from hrm_agent.errors import ConfigError
from hrm_agent.training.engines.costs import IterationCosts
from hrm_agent.training.engines.policies import (
    HORIZONS,
    POLICIES,
    ExpectedPeak,
    LengthCurve,
    scheduling_policy,
)
from hrm_agent.training.engines.scheduler import RolloutScheduler


def peak_by_the_formula(
    lengths: list[int], tokens: list[float], prompts: int, deviations: float
) -> float:
    def survival(x: float) -> float:
        return (sum(length > x for length in lengths) + 0.5) / (len(lengths) + 0.5)

    highest = 0.0
    for horizon in range(HORIZONS):
        ahead = horizon * max(1, *lengths) / HORIZONS
        alive = [survival(x + ahead) / survival(x) for x in tokens]
        mean = sum((x + ahead) * p for x, p in zip(tokens, alive, strict=True))
        variance = sum((x + ahead) ** 2 * p * (1 - p) for x, p in zip(tokens, alive, strict=True))
        highest = max(highest, mean + deviations * math.sqrt(variance))
    return highest + prompts


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 512), min_size=2, max_size=40),
    tokens=st.lists(st.integers(0, 500), max_size=12),
    grown=st.lists(st.integers(0, 500), max_size=12),
)
def test_the_peak_is_that_of_the_formula(
    lengths: list[int], tokens: list[int], grown: list[int]
) -> None:
    """Compared after all rollouts have arrived, and again after some have grown. Blocks of 2 add
    one token to each.
    """
    lengths = [*lengths, 512]  # one bucket of the table is one token
    scheduler = RolloutScheduler(ExpectedPeak(deviations=2.0), LengthCurve.of(lengths))
    scheduler.join("engine", 10**9, 256, block_tokens=2)
    now: list[int] = []
    for i, more in enumerate(tokens):
        assert scheduler.arrive(f"{i}", f"{i // 2}", 100)
        scheduler.grow(f"{i}", 100 + more)
        now.append(more)
    (load,) = scheduler.load().engines
    prompts = 100 * math.ceil(len(tokens) / 2)
    assert load.peak_tokens == pytest.approx(
        peak_by_the_formula(lengths, [x + 1.0 for x in now], prompts, 2.0)
    )
    for i, more in enumerate(grown[: len(tokens)]):
        scheduler.grow(f"{i}", 100 + more)
        now[i] = more
    (load,) = scheduler.load().engines
    assert load.peak_tokens == pytest.approx(
        peak_by_the_formula(lengths, [x + 1.0 for x in now], prompts, 2.0)
    )
    assert load.tokens == sum(now) + prompts


def test_what_is_admitted_fits_when_it_is_played_out() -> None:
    """Promise of `deviations`: hardly any admitted set exceeds its engine's memory, and if so only
    slightly.
    """
    chance = random.Random(0)
    draw = [min(4_000, int(math.exp(chance.gauss(7, 0.7)))) for _ in range(4_000)]
    capacity, over, highest = 60_000, 0, 0
    for step in range(40):
        scheduler = RolloutScheduler(ExpectedPeak(), LengthCurve.of(draw), step)
        scheduler.join("engine", capacity, 256)
        running = [p.rollout for i in range(200) for p in scheduler.arrive(f"{i}", "group", 50)]
        assert 30 < len(running) < 100
        lengths = [chance.choice(draw) for _ in running]
        most = max(sum(h for length in lengths if length > h) for h in range(0, 4_000, 20)) + 50
        over, highest = over + (most > capacity), max(highest, most)
    assert over <= 4
    assert highest <= 1.1 * capacity


def test_an_engine_that_is_bound_by_overhead_takes_everybody() -> None:
    curve = LengthCurve.of([1_000] * 10)
    costs = {
        "overhead": IterationCosts(0.005, 0.005, 1e-4, 1e-4),
        "compute": IterationCosts(0.005, 0.005, 0.002, 0.002),
    }
    for name, known in costs.items():
        scheduler = RolloutScheduler(ExpectedPeak(), curve)
        scheduler.join("engine", 10_000, 256, costs=known)
        for i in range(50):
            scheduler.arrive(f"{i}", "group", 10)
        (load,) = scheduler.load().engines
        assert load.live == 50 if name == "overhead" else 8 <= load.live <= 11
    scheduler = RolloutScheduler(ExpectedPeak(admit_all=True), curve)
    scheduler.join("engine", 10_000, 256)
    assert sum(len(scheduler.arrive(f"{i}", "group", 10)) for i in range(50)) == 50


def test_rollouts_in_a_tool_call_make_no_iteration_dearer() -> None:
    later: list[int] = []
    for prompt_token in (2.5e-4, 0.01):
        scheduler = RolloutScheduler(ExpectedPeak(), LengthCurve.of([1_000] * 10))
        scheduler.join(
            "engine", 10_000, 256, costs=IterationCosts(0.005, 0.005, 1e-4, prompt_token)
        )
        placed = [each.rollout for i in range(50) for each in scheduler.arrive(f"{i}", "group", 10)]
        assert 8 <= len(placed) <= 11, "all of them sample"
        later.append(sum(len(scheduler.turn_ended(name)) for name in placed))
    assert later[0] > 10 and later[1] <= 2, (
        "others sample in place of those in a tool call, where that is cheap"
    )


def test_a_prompt_that_a_group_shares_counts_once() -> None:
    curve = LengthCurve.of([100] * 10)
    scheduler = RolloutScheduler(ExpectedPeak(), curve)
    scheduler.join("engine", 5_000, 256)
    alike = sum(len(scheduler.arrive(f"a{i}", "group", 2_000)) for i in range(8))
    assert alike == 8
    scheduler = RolloutScheduler(ExpectedPeak(), curve)
    scheduler.join("engine", 5_000, 256)
    assert sum(len(scheduler.arrive(f"a{i}", f"group {i}", 2_000)) for i in range(8)) == 2


def test_as_many_run_at_once_as_the_engine_takes() -> None:
    scheduler = RolloutScheduler(ExpectedPeak(), LengthCurve.of([10]))
    scheduler.join("engine", 10**6, 3)
    assert sum(len(scheduler.arrive(f"{i}", "group", 10)) for i in range(5)) == 3
    assert [each.rollout for each in scheduler.turn_ended("0")] == ["3"]


def test_policies_are_known_by_their_names() -> None:
    assert sorted(POLICIES) == [
        "expected_peak",
        "fixed_limit",
        "least_requests",
        "safe_maximum",
        "static_prompts",
        "static_rollouts",
    ]
    assert isinstance(scheduling_policy("expected_peak", deviations=3.0), ExpectedPeak)
    with pytest.raises(ConfigError, match=r"Did you mean 'expected_peak'\?"):
        scheduling_policy("expected_peaks")
    with pytest.raises(ConfigError, match="max_response_tokens"):
        scheduling_policy("safe_maximum")
    with pytest.raises(ConfigError, match="none below 0"):
        LengthCurve.of([])
