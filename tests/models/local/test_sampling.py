"""Noise by seed and position, and what is chosen with it."""

from __future__ import annotations

import numpy as np
import torch

from hrm_agent.models.local.sampling import sample_rows, seed_state, uniform


def test_noise_is_uniform_and_uncorrelated() -> None:
    states = np.repeat(np.asarray([seed_state(seed) for seed in range(200)]), 200)
    noise = uniform(states, np.tile(np.arange(200), 200)).reshape(200, 200)
    assert noise.min() >= 0
    assert noise.max() < 1
    assert abs(noise.mean() - 0.5) < 0.01
    counts = np.histogram(noise, bins=50, range=(0, 1))[0]
    assert ((counts - 800) ** 2 / 800).sum() < 100
    for shifted in (noise[:, 1:], noise[1:].T):
        base = noise[:, :-1] if shifted.shape == (200, 199) else noise[:-1].T
        assert abs(np.corrcoef(base.ravel(), shifted.ravel())[0, 1]) < 0.02


def test_noise_depends_on_seed_and_position_only() -> None:
    assert (
        uniform(np.asarray([seed_state(3)]), np.asarray([5]))
        == uniform(np.asarray([seed_state(9), seed_state(3)]), np.asarray([5, 5]))[1]
    )
    assert seed_state(3) != seed_state(3 + 2**32)
    assert seed_state(-1) == seed_state(2**64 - 1)


def choose(probs: list[float], noise: float, temperature: float = 1.0, top_p: float = 1.0) -> int:
    tokens, _ = sample_rows(
        torch.tensor([probs]).log(),
        torch.tensor([noise], dtype=torch.float64),
        torch.tensor([temperature]),
        torch.tensor([top_p], dtype=torch.float64),
    )
    return int(tokens[0])


def test_the_cumulative_distribution_is_inverted() -> None:
    probs = [0.0, 0.25, 0.0, 0.5, 0.25, 0.0]
    assert [choose(probs, noise) for noise in (0, 0.24, 0.26, 0.74, 0.76, 1 - 2**-52)] == [
        1,
        1,
        3,
        3,
        4,
        4,
    ]


def test_temperature_sharpens_and_zero_is_greedy() -> None:
    assert choose([0.4, 0.6], 0.35) == 0
    assert choose([0.4, 0.6], 0.35, temperature=0.5) == 1
    assert choose([0.4, 0.6], 0.0, temperature=0) == 1
    assert choose([0.5, 0.5], 0.9, temperature=0) == 0


def test_top_p_keeps_the_smallest_sufficient_set() -> None:
    probs = [0.1, 0.5, 0.1, 0.3]
    assert {choose(probs, noise, top_p=0.5) for noise in (0, 0.5, 0.999)} == {1}
    assert {choose(probs, noise, top_p=0.51) for noise in (0, 0.5, 0.999)} == {1, 3}
    assert {choose(probs, noise, top_p=1e-9) for noise in (0, 0.999)} == {1}


def test_log_probs_are_at_the_row_s_temperature_and_rows_keep_to_themselves() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0], [3.0, 1.0, 0.0], [0.0, 5.0, 0.0]])
    tokens, logprobs = sample_rows(
        logits,
        torch.tensor([0.99, 0.5, 0.1], dtype=torch.float64),
        torch.tensor([1.0, 0.0, 3.0]),
        torch.tensor([1.0, 0.1, 0.2], dtype=torch.float64),
    )
    assert tokens.tolist() == [2, 0, 1]
    # greedy tokens have the log-probs of temperature 1
    at = logits / torch.tensor([[1.0], [1.0], [3.0]])
    torch.testing.assert_close(logprobs, at.log_softmax(-1)[range(3), tokens])
    alone = [
        sample_rows(
            logits[i : i + 1], torch.zeros(1).double(), torch.tensor([t]), torch.ones(1).double()
        )[1]
        for i, t in ((0, 1.0), (1, 0.0))
    ]
    beside = sample_rows(
        logits, torch.zeros(3).double(), torch.tensor([1.0, 0.0, 3.0]), torch.ones(3).double()
    )[1]
    assert torch.equal(torch.cat(alone), beside[:2]), (
        "to the last bit, whatever temperature another row has"
    )


def test_many_rows_of_a_large_vocabulary_are_each_sampled_as_alone() -> None:
    rows, vocabulary = 20, 1 << 16  # more logits than are sampled from at once
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, vocabulary, generator=generator)
    noise = torch.rand(rows, dtype=torch.float64, generator=generator)
    temperature = torch.tensor([0.0, 1.0, 0.7, 1.3]).repeat(5)
    top_p = torch.tensor([1.0, 0.9], dtype=torch.float64).repeat(10)
    held = torch.tensor([3, 9, 17])
    allowed = torch.rand(3, vocabulary, generator=generator) < 1e-3
    tokens, logprobs = sample_rows(logits, noise, temperature, top_p, (held, allowed))
    for row in range(rows):
        one = slice(row, row + 1)
        its = held == row
        alone = sample_rows(
            logits[one],
            noise[one],
            temperature[one],
            top_p[one],
            (torch.tensor([0]), allowed[its]) if its.any() else None,
        )
        assert (tokens[row], logprobs[row]) == alone
    assert allowed[range(3), tokens[held]].all()
