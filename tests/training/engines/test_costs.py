"""Costs of an iteration from the times of requests: made-up engines, whose constants are known,
give them back.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from hrm_agent.training.engines.costs import fit_iterations, measure_costs


class MadeUpEngine:
    """Takes max(weights, token x tokens) + overhead for an iteration, `link` for a request, and up
    to `noise` more.
    """

    def __init__(
        self, weights: float, overhead: float, token: float, link: float = 0.002, noise: float = 0.0
    ) -> None:
        self.weights, self.overhead, self.token, self.link, self.noise = (
            weights,
            overhead,
            token,
            link,
            noise,
        )
        self.asked: list[tuple[int, int, int]] = []
        """Requests as (number of prompts, tokens of each, sampled tokens of each)."""
        self.spent = 0.0
        self._chance = random.Random(1)

    def __call__(self, prompts: Sequence[Sequence[int]], sampled: int) -> float:
        self.asked.append((len(prompts), len(prompts[0]), sampled))
        first = max(self.weights, self.token * sum(map(len, prompts)))
        others = (sampled - 1) * max(self.weights, self.token * len(prompts))
        seconds = self.link + first + others + sampled * self.overhead
        seconds *= 1 + self.noise * self._chance.random()
        self.spent += seconds
        return seconds


def test_a_line_gives_back_what_it_was_made_of() -> None:
    found = fit_iterations({n: 0.003 + 0.0005 * n for n in (1, 4, 16)})
    assert found.token_s == pytest.approx(0.0005)
    assert found.overhead_s == pytest.approx(0.003)
    assert found.weights_s + found.overhead_s == pytest.approx(0.0035)


@pytest.mark.parametrize(
    "seconds", [{1: 0.011, 4: 0.011, 16: 0.011}, {1: 0.011, 4: 0.0111, 16: 0.0108}, {1: 0.011}]
)
def test_where_sequences_add_nothing_their_cost_is_tiny(seconds: dict[int, float]) -> None:
    found = fit_iterations(seconds)
    assert 0 < found.token_s < 1e-8
    assert found.weights_s > 0
    assert found.weights_s + found.overhead_s == pytest.approx(0.011, rel=0.01)


@pytest.mark.parametrize(
    ("weights", "overhead", "token"),
    [(0.008, 0.003, 62e-6), (0.0135, 0.003, 66e-6), (0.0, 0.002, 16e-6), (0.0, 0.01, 0.002)],
    ids=["14B on an MI300X", "14B on an H100", "small on a core", "computation on a core"],
)
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_an_engine_gives_back_its_constants(
    weights: float, overhead: float, token: float, noise: float
) -> None:
    """Includes engines on which 16 sequences take as long as one, so that only prompts reveal the
    cost per token.
    """
    engine = MadeUpEngine(weights, overhead, token, noise=noise)
    found = measure_costs(engine, max_running=256, kv_tokens=100_000, max_length=4_096)
    near = 0.25 if noise else 1e-6
    assert found.prompt_token_s == pytest.approx(token, rel=near)
    assert found.weights_s + found.overhead_s == pytest.approx(
        max(weights, token) + overhead, rel=near
    )


@pytest.mark.parametrize(
    ("overhead", "token"), [(0.2, 0.001), (0.2, 62e-6), (0.0, 0.025), (0.05, 0.05)]
)
def test_a_slow_engine_is_asked_for_little(overhead: float, token: float) -> None:
    engine = MadeUpEngine(0.0, overhead, token)
    found = measure_costs(engine, max_running=256, kv_tokens=100_000, max_length=4_096)
    assert engine.spent < 15
    assert found.prompt_token_s == pytest.approx(token, rel=0.05)


@pytest.mark.parametrize(
    ("max_running", "kv_tokens", "max_length"),
    [(2, 100_000, 4_096), (256, 1_024, 512), (64, 20_000, 100), (8, 64, 64)],
)
def test_what_is_asked_fits(max_running: int, kv_tokens: int, max_length: int) -> None:
    engine = MadeUpEngine(0.0, 0.002, 1e-4)
    found = measure_costs(
        engine, max_running=max_running, kv_tokens=kv_tokens, max_length=max_length
    )
    assert min(found.prompt_token_s, found.weights_s + found.overhead_s) > 0
    for prompts, tokens, sampled in engine.asked:
        assert prompts <= max_running
        assert tokens + sampled <= max_length
        assert prompts * (tokens + sampled) <= kv_tokens
