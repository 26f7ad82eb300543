"""Texts on both sides of the length at which a model takes other rotary factors: each token as it
was sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from transformers import LlamaConfig, LlamaForCausalLM

from hrm_agent.errors import ModelError
from hrm_agent.models.local.engine import TransformersEngine
from hrm_agent.training.config.commands import SftConfig
from hrm_agent.training.update.batch import ForwardName, Row, micro_batches
from hrm_agent.training.update.logprobs import token_logprobs, trained_logits
from hrm_agent.training.update.logprobs.entropies import token_entropies
from hrm_agent.training.update.sft_gradient import Example, gradient_of_batch
from tests.models.local.test_engine import OpenEnded, ask
from tests.support.training.longrope import SIZES, SWITCH, expected_logprobs, longrope_model
from tests.training.update.logprobs.test_forwards import FORWARDS, loss_and_gradient
from tests.training.update.test_loss import random_rows


def rows(seed: int = 0) -> list[Row]:
    """Texts that share beginnings, below the switch, beyond it, and across; tokens are trained in
    stretches.
    """
    rng = np.random.default_rng(seed)
    stem = rng.integers(3, 60, 90)
    found: list[Row] = []
    for shared, length in (
        (5, 12),
        (5, SWITCH),
        (18, SWITCH + 1),
        (18, SWITCH + 2),
        (18, 60),
        (30, 50),
        (80, 90),
        (0, 7),
    ):
        tokens = np.concatenate([stem[:shared], rng.integers(3, 60, length - shared)])
        mask = rng.random(length) < 0.5
        mask[0], mask[-1] = False, True
        found.append(row_of(tokens, mask, len(found)))
    beyond = np.arange(50) >= SWITCH + 4  # nothing to train before the switch
    return [*found, row_of(rng.integers(3, 60, 50), beyond, len(found))]


def row_of(tokens: np.ndarray, mask: np.ndarray, sequence: int) -> Row:
    zeros, ones = np.zeros(len(tokens), np.float32), np.ones(len(tokens), np.float32)
    versions = np.zeros(len(tokens), np.int64)
    weights = np.where(mask, np.float32(0.5 + sequence), np.float32(0))
    return Row(tokens, mask, zeros, weights, ones, ones, versions, sequence, int(mask.sum()))


@pytest.fixture(scope="module")
def expected() -> list[np.ndarray]:
    """Log-probs of each row, by a pass of the model for every token."""
    model, given = longrope_model(), rows()
    found = [expected_logprobs(model, row.token_ids.tolist(), 1).numpy() for row in given]
    return [logprobs[row.loss_mask[1:]] for logprobs, row in zip(found, given, strict=True)]


def by_sequence(
    model: Any, given: Sequence[Row], forward: ForwardName, budget: int
) -> list[np.ndarray]:
    found: dict[int, list[float]] = {}
    with torch.no_grad():
        for batch in micro_batches(given, token_budget=budget, forward=forward):
            logprobs = token_logprobs(model, batch)
            assert (
                torch.equal(token_entropies(model, batch)[1], logprobs) or batch.forward == "padded"
            )
            for sequence, logprob in zip(
                batch.sequences_K.tolist(), logprobs.tolist(), strict=True
            ):
                found.setdefault(sequence, []).append(logprob)
    return [np.array(found[row.sequence], np.float32) for row in given]


@pytest.mark.parametrize("budget", [1, 10_000])
@pytest.mark.parametrize("forward", FORWARDS)
def test_log_probs_are_those_of_one_pass_over_what_stands_before(
    forward: ForwardName, budget: int, expected: list[np.ndarray]
) -> None:
    for found, right in zip(
        by_sequence(longrope_model(), rows(), forward, budget), expected, strict=True
    ):
        np.testing.assert_allclose(found, right, atol=1e-5)


def test_all_ways_to_forward_give_one_gradient() -> None:
    model, given = longrope_model().double(), rows(1)
    _, gradient = loss_and_gradient(model, micro_batches(given, token_budget=1))
    for forward in FORWARDS:
        for budget in (200, 10_000):
            _, found = loss_and_gradient(
                model, micro_batches(given, token_budget=budget, forward=forward)
            )
            torch.testing.assert_close(
                found, gradient, atol=1e-6 * float(gradient.abs().max()), rtol=1e-5
            )


@pytest.mark.parametrize("forward", FORWARDS)
def test_the_trainer_finds_what_the_engine_recorded(forward: ForwardName) -> None:
    model = longrope_model(2)
    prompts = [
        np.random.default_rng(length).integers(3, 60, length).tolist()
        for length in (4, 20, 30, 100)
    ]
    with TransformersEngine(model, OpenEnded(), name="longrope") as engine:
        futures = [ask(engine, prompt, seed, max_tokens=20) for seed, prompt in enumerate(prompts)]
        done = [future.result(60) for future in futures]
    given: list[Row] = []
    for sequence, (prompt, answer) in enumerate(zip(prompts, done, strict=True)):
        tokens = np.array([*prompt, *answer.token_ids])
        row = row_of(tokens, np.arange(len(tokens)) >= len(prompt), sequence)
        given.append(
            replace(
                row, old_logprobs=np.array([*[0.0] * len(prompt), *answer.logprobs], np.float32)
            )
        )
    for batch in micro_batches(given, token_budget=10_000, forward=forward):
        with torch.no_grad():
            torch.testing.assert_close(
                token_logprobs(model, batch), batch.old_logprobs_K, atol=1e-5, rtol=0
            )


@pytest.mark.parametrize("forward", ["padded", "packed"])
def test_fine_tuning_learns_each_token_as_it_would_be_sampled(
    forward: Any, expected: list[np.ndarray]
) -> None:
    examples = [
        Example(tuple(row.token_ids.tolist()), tuple(row.loss_mask.tolist())) for row in rows()
    ]
    config = SftConfig(forward=forward, micro_batch_tokens=10_000)
    row = gradient_of_batch(Accelerator(cpu=True), longrope_model(), examples, config)
    assert row["loss"] == pytest.approx(-np.concatenate(expected).mean(), abs=1e-5)


def test_what_is_short_is_forwarded_once() -> None:
    model = longrope_model()
    seen: list[int] = []
    model.model.layers[0].register_forward_pre_hook(
        lambda _, given: seen.append(given[0].numel() // 32)
    )
    (batch,) = micro_batches(random_rows(0)[:2], token_budget=10_000, forward="packed")
    trained_logits(model, batch)
    across = row_of(np.arange(3, 53), np.arange(50) >= 10, 0)
    (batch,) = micro_batches([across], token_budget=10_000, forward="packed")
    trained_logits(model, batch)
    assert seen == [sum(len(row) for row in random_rows(0)[:2]), (SWITCH + 1) + 50]


def test_dynamic_factors_are_refused_where_they_change() -> None:
    table = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    model = LlamaForCausalLM(
        LlamaConfig(**SIZES, max_position_embeddings=64, rope_parameters=table)
    ).eval()
    short, *_, long = sorted(rows(), key=len)
    for forward in FORWARDS:
        token_logprobs(model, micro_batches([short], token_budget=1, forward=forward)[0])
        with pytest.raises(ModelError, match=r"Beyond 64 .*rope_type dynamic"):
            token_logprobs(
                model, micro_batches([short, long], token_budget=10_000, forward=forward)[0]
            )
