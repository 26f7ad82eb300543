"""The simulator of several engines: its blocks add up, its times are those of its formula, nothing
is lost.
"""

from __future__ import annotations

import random
from dataclasses import replace

import hypothesis.strategies as st
import pytest
import simpy
from hypothesis import given, settings

from benchmarks.simulate.blocks import Blocks
from benchmarks.simulate.cases import ENGINES, cases_of, read_model, run_case
from benchmarks.simulate.engine import EngineModel, Sequence, SimulatedEngine
from benchmarks.simulate.fleet import Outcome, simulate
from benchmarks.simulate.workload import Planned, Turn, Workload, drawn
from hrm_agent.errors import ConfigError
from hrm_agent.training.engines.policies import POLICIES, LengthCurve, scheduling_policy

MODEL = EngineModel(
    0.008, 0.003, 1e-6, 1e-3, capacity_tokens=4_096, block_tokens=16, max_running=64
)
SMALL = Workload(
    groups=6, group_size=4, prompt_tokens=40, mean_response=200, max_response=600, tool_tokens=20
)


@given(st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_blocks_add_up(seed: int) -> None:
    """Blocks held, kept and handed out again add up. A sequence finds no more of itself than it
    had.
    """
    chance, blocks = random.Random(seed), Blocks(40, 4)
    running: dict[str, tuple[int, int]] = {}
    had: dict[str, int] = {}
    for _ in range(60):
        name = f"{chance.randrange(8)}"
        group, prompt = f"{int(name) % 3}", 6 + 4 * (int(name) % 3)
        if name in running:
            tokens, held = running[name]
            if chance.random() < 0.5:
                blocks.release(name, group, prompt, tokens)
                had[name] = tokens
                del running[name]
            elif (more := blocks.of(tokens + 3) - blocks.of(tokens)) <= blocks.free:
                blocks.take(more)
                running[name] = (tokens + 3, held)
        else:
            tokens = had.get(name, prompt) + chance.randrange(9)
            fit = blocks.admit(name, group, prompt, tokens)
            if fit is not None:
                assert fit.cached_tokens <= max(had.get(name, 0), prompt)
                running[name] = (tokens, 0)
        shared = {f"{int(each) % 3}": (6 + 4 * (int(each) % 3)) // 4 for each in running}
        own = sum(blocks.of(t) - (6 + 4 * (int(each) % 3)) // 4 for each, (t, _) in running.items())
        assert blocks.count - blocks.free == own + sum(shared.values())


def iteration_by_iteration(turns: list[tuple[int, int]], model: EngineModel) -> list[float]:
    """End times of turns of (prompt, sampled tokens) that all fit and are requested at once,
    simulated one token at a time.
    """
    now, first, ends = 0.0, True, [0.0] * len(turns)
    tokens, left = [prompt for prompt, _ in turns], [sampled for _, sampled in turns]
    while any(left):
        running = [i for i, more in enumerate(left) if more]
        fed = sum(tokens[i] - 1 for i in running) if first else 0
        now += max(model.weights_s, model.token_s * (len(running) + fed)) + model.overhead_s
        now += model.cached_token_s * sum(tokens[i] for i in running)
        first = False
        for i in running:
            tokens[i], left[i], ends[i] = tokens[i] + 1, left[i] - 1, now
    return ends


def test_a_stretch_takes_as_long_as_its_iterations() -> None:
    turns = [(20 + 7 * i, 5 + 11 * i) for i in range(8)]
    env, ends = simpy.Environment(), dict[str, float]()
    engine = SimulatedEngine(env, MODEL, lambda each: ends.__setitem__(each.name, env.now))
    engine._in_step = True  # they are asked for together
    for i, (prompt, sampled) in enumerate(turns):
        engine.submit(Sequence(f"{i}", f"{i}", prompt, prompt, sampled, 0))
    engine._in_step = False
    engine._next()
    env.run()
    assert [ends[f"{i}"] for i in range(8)] == pytest.approx(iteration_by_iteration(turns, MODEL))
    assert (engine.preemptions, engine.recomputed, engine.blocks.free) == (
        0,
        0,
        engine.blocks.count,
    )


def test_who_comes_later_waits_for_the_iteration_under_way() -> None:
    env, ends = simpy.Environment(), dict[str, float]()
    model = replace(MODEL, cached_token_s=0.0)
    engine = SimulatedEngine(env, model, lambda each: ends.__setitem__(each.name, env.now))
    engine.submit(Sequence("long", "a", 1, 1, 100, 0))
    env.run(until=0.0115)  # in the second iteration of 11 ms
    engine.submit(Sequence("short", "b", 1, 1, 1, 0))
    env.run()
    assert ends == pytest.approx({"short": 0.033, "long": 1.1})


def outcome(policy: str, tokens: int, engines: int = 2, seed: int = 1, **options: float) -> Outcome:
    rollouts = drawn(SMALL, seed)
    curve = LengthCurve.of(each.response_tokens for each in drawn(SMALL, seed + 1))
    model = replace(MODEL, capacity_tokens=tokens)
    return simulate(
        rollouts, model, engines, scheduling_policy(policy, **options), curve, seed=seed
    )


OPTIONS: dict[str, dict[str, float]] = {
    "fixed_limit": {"limit": 6},
    "safe_maximum": {"max_response_tokens": 600},
}


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_does_the_same_work_and_none_beats_the_bound(policy: str) -> None:
    found = [outcome(policy, tokens, **OPTIONS.get(policy, {})) for tokens in (800, 1_600, 50_000)]
    rollouts = drawn(SMALL, 1)
    for each in found:
        assert each.sampled_tokens == sum(one.sampled_tokens for one in rollouts)
        assert each.calls == sum(len(one.turns) - 1 for one in rollouts)
        assert 0 < each.share <= 1
        assert 0 <= each.idle < 1
    assert found[0].seconds > found[2].seconds
    assert found[2].preemptions == 0
    again = outcome(policy, 800, **OPTIONS.get(policy, {}))
    assert (again.seconds, again.preemptions) == (found[0].seconds, found[0].preemptions)


def test_preempting_is_what_a_reserve_avoids() -> None:
    crowded, safe = (
        outcome("static_rollouts", 1_200),
        outcome("safe_maximum", 1_200, max_response_tokens=600),
    )
    assert crowded.preemptions > 0
    assert crowded.recomputed > 0.05
    assert safe.preemptions == 0


def test_what_the_scheduler_is_for() -> None:
    """Compared with the constants of a GPU, a cache of 0.3 and two engines. `docs/scale.md` has the
    paper's size.
    """
    model = read_model(ENGINES / "mi300x-qwen3-14b.json")
    cases = cases_of(model, 2, Workload(groups=16), 1, 0.3, ["static_rollouts", "expected_peak"])
    found = {case.policy: run_case(case) for case in cases}
    assert found["expected_peak"].seconds < 0.95 * found["static_rollouts"].seconds
    assert found["expected_peak"].recomputed < 0.1


def test_lengths_are_what_was_asked_for() -> None:
    work = Workload(groups=200, group_size=16)
    lengths = [each.response_tokens for each in drawn(work, 0)]
    assert sum(lengths) / len(lengths) == pytest.approx(5_000, rel=0.1)
    assert max(lengths) == 12_000
    assert sum(len(each.turns) - 1 for each in drawn(work, 0)) / len(lengths) == pytest.approx(
        2.7, rel=0.05
    )
    assert drawn(work, 0) == drawn(work, 0) != drawn(work, 1)
    plan = Planned("r", "g", 10, (Turn(5, 7, 0.1), Turn(3, 0, 0.0)))
    assert (plan.sampled_tokens, plan.response_tokens) == (8, 15)


def test_a_file_without_constants_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no constants of an engine"):
        read_model(ENGINES / "none.json")
