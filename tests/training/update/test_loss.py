from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm_agent.training.update.batch import MicroBatch, Row, micro_batches
from hrm_agent.training.update.logprobs import log_softmax, token_logprobs
from hrm_agent.training.update.logprobs.log_softmax import chosen_logprobs
from hrm_agent.training.update.logprobs.padded import side_by_side
from hrm_agent.training.update.objectives import LossOptions, clipped_surrogate, merge_metrics
from hrm_agent.training.update.optimizer_step import OptimOptions, policy_update
from tests.support.training.builders import VOCABULARY, tiny_model

MODEL = tiny_model()
ENGINE = LossOptions(old_logprobs="engine")
"""The ratio is to the log-probs on record."""


def random_rows(seed: int, count: int = 7) -> list[Row]:
    """Rows of 4 to 24 tokens; old log-probs off by up to 0.5 from the model's, so that clipping is
    active.
    """
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    for size in rng.integers(4, 25, count):
        ids = rng.integers(3, VOCABULARY, size)
        mask = rng.random(size) < 0.6
        mask[0], mask[-1] = False, True
        with torch.no_grad():
            logits = MODEL(input_ids=torch.from_numpy(ids)[None]).logits[0, :-1]
        own = np.concatenate([[0.0], chosen_logprobs(logits, torch.from_numpy(ids[1:])).numpy()])
        old = np.where(mask, own + rng.uniform(-0.5, 0.5, size), 0.0).astype(np.float32)
        advantage = rng.choice([-1.3, 0.7, 1.1])
        rows.append(
            Row(
                ids,
                mask,
                old,
                np.where(mask, advantage, 0.0).astype(np.float32),
                *sampled_at_1(size),
            )
        )
    return rows


def sampled_at_1(size: int) -> tuple[Any, Any, Any]:
    """Temperatures of tokens sampled, and recorded, at 1, and their version 0."""
    return np.ones(size, np.float32), np.ones(size, np.float32), np.zeros(size, np.int64)


def gradients(
    rows: list[Row], budget: int
) -> tuple[float, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    model = tiny_model()
    batches = micro_batches(rows, token_budget=budget)
    total = sum(b.trained_tokens for b in batches)
    parts: list[dict[str, Any]] = []
    for batch in batches:
        loss, metrics = clipped_surrogate(
            token_logprobs(model, batch), batch.old_logprobs_K, batch.weights_K, total
        )
        loss.backward()
        parts.append(metrics)
    merged = merge_metrics(parts)
    return float(merged["loss"]), {n: p.grad for n, p in model.named_parameters()}, merged


@pytest.mark.parametrize("budget", [1, 30, 64])
def test_split_micro_batches_equal_one_batch(budget):
    rows = random_rows(0)
    loss, grads, metrics = gradients(rows, 10_000)
    split_loss, split_grads, split_metrics = gradients(rows, budget)
    assert split_loss == pytest.approx(loss, abs=1e-6)
    for name, grad in grads.items():
        assert torch.allclose(split_grads[name], grad, atol=1e-6), name
    for name, value in metrics.items():
        assert float(split_metrics[name]) == pytest.approx(float(value), abs=1e-5), name
    assert float(metrics["clip_fraction_low"]) > 0, "the case must clip"
    assert float(metrics["clip_fraction_high"]) > 0, "the case must clip"


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000))
def test_padded_rows_equal_unpadded_ones(seed):
    rows = random_rows(seed, 4)
    with torch.no_grad():
        (batch,) = micro_batches(rows, token_budget=10_000)
        together = token_logprobs(MODEL, batch)
        alone = [token_logprobs(MODEL, b) for b in micro_batches(rows, token_budget=1)]
    assert torch.allclose(together, torch.cat(alone), atol=1e-6)


def test_logprobs_are_the_models_own_at_the_trained_tokens():
    (batch,) = micro_batches(random_rows(1), token_budget=10_000)
    with torch.no_grad():
        token_ids_BT, rows_N = side_by_side(batch)
        logits_BTV = MODEL(input_ids=token_ids_BT).logits
        ours = token_logprobs(MODEL, batch)
    whole_BT = logits_BTV.log_softmax(-1)[:, :-1].gather(-1, token_ids_BT[:, 1:, None])[..., 0]
    at_K = batch.loss_indices_K
    assert torch.allclose(ours, whole_BT[rows_N[at_K], batch.positions_N[at_K] - 1], atol=1e-6)


def test_the_output_layer_sees_trained_positions_only_and_is_itself_again():
    (batch,) = micro_batches(random_rows(1), token_budget=10_000)
    seen: list[torch.Size] = []
    handle = MODEL.lm_head.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape))
    with torch.no_grad():
        token_logprobs(MODEL, batch)
        MODEL(input_ids=side_by_side(batch)[0])
    handle.remove()
    assert seen == [(batch.trained_tokens, 32), (*side_by_side(batch)[0].shape, 32)]


def test_chunks_change_nothing(monkeypatch):
    logits, ids = (
        torch.randn(10, 7, generator=torch.Generator().manual_seed(0)) * 30,
        torch.arange(10) % 7,
    )
    whole = chosen_logprobs(logits, ids)
    monkeypatch.setattr(log_softmax, "CHUNK_ELEMENTS", 21)
    assert torch.equal(chosen_logprobs(logits, ids), whole)
    assert torch.allclose(chosen_logprobs(logits.bfloat16(), ids), whole, atol=0.5)
    assert chosen_logprobs(logits.bfloat16(), ids).dtype == torch.float32


def scalar(ratio: float, advantage: float, **options: Any) -> tuple[float, float, dict[str, float]]:
    """(loss, gradient with respect to the log-prob, metrics) of a single token."""
    logprob = torch.tensor([math.log(ratio)], requires_grad=True)
    loss, metrics = clipped_surrogate(
        logprob, torch.zeros(1), torch.tensor([advantage]), 1, **options
    )
    loss.backward()
    return (
        float(loss.detach()),
        float(logprob.grad),
        {name: float(value) for name, value in metrics.items()},
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "grad"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.27, 1.0, -1.27, -1.27),
        (1.5, 1.0, -1.28, 0.0),  # above the upper bound: no more reward
        (0.5, 1.0, -0.5, -0.5),  # a good token that became rare is pulled back
        (0.5, -1.0, 0.8, 0.0),  # below the lower bound: no more blame
        (0.81, -1.0, 0.81, 0.81),
        (5.0, -1.0, 5.0, 5.0),  # a bad token that became frequent is pushed down
    ],
)
def test_the_clipped_surrogate_by_hand(ratio, advantage, loss, grad):
    assert scalar(ratio, advantage)[:2] == pytest.approx((loss, grad))


def test_dual_clip_bounds_the_loss_of_bad_tokens():
    assert scalar(5.0, -1.0, dual_clip=3.0)[:2] == pytest.approx((3.0, 0.0))
    assert scalar(2.0, -1.0, dual_clip=3.0)[:2] == pytest.approx((2.0, 2.0))
    assert scalar(5.0, 1.0, dual_clip=3.0)[0] == pytest.approx(-1.28)


def test_metrics_by_hand():
    metrics = scalar(1.5, 1.0)[2]
    assert metrics["clip_fraction_high"] == 1
    assert metrics["clip_fraction_low"] == 0
    assert metrics["ratio_max"] == pytest.approx(1.5)
    assert metrics["kl_k3"] == pytest.approx(1.5 - 1 - math.log(1.5))
    assert metrics["entropy_estimate"] == pytest.approx(-math.log(1.5))
    assert scalar(0.5, -1.0)[2]["clip_fraction_low"] == 1


def test_kl_k3_is_the_divergence_of_the_new_policy_from_the_old_one():
    """Each token weighed by its probability under the old policy, from which the samples are."""
    old_V, new_V = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.2, 0.3, 0.5])
    estimates_V = [
        float(clipped_surrogate(new.log()[None], old.log()[None], torch.ones(1), 1.0)[1]["kl_k3"])
        for new, old in zip(new_V, old_V, strict=True)
    ]
    exact = float((old_V * (old_V.log() - new_V.log())).sum())
    assert sum(float(p) * k for p, k in zip(old_V, estimates_V, strict=True)) == pytest.approx(
        exact, abs=1e-6
    )
    assert min(estimates_V) >= 0


def step(
    rows: list[Row], budget: int, **options: Any
) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    model = tiny_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    batches = micro_batches(rows, token_budget=budget)
    metrics = policy_update(model, optimizer, batches, **{"loss": ENGINE, **options})
    assert not model.training
    return metrics, {name: p.detach() for name, p in model.named_parameters()}


def test_an_update_does_not_depend_on_the_micro_batches():
    rows = random_rows(2)
    one, weights = step(rows, 10_000)
    many, split_weights = step(rows, 1)
    assert (one["micro_batches"], many["micro_batches"]) == (1, 7)
    for name, value in one.items():
        assert name == "micro_batches" or many[name] == pytest.approx(
            value, abs=1e-5, nan_ok=True
        ), name
    for name, weight in weights.items():
        # Adam divides by the gradient's size: a rounding error of a vanishing gradient may become a
        # part of lr.
        assert torch.allclose(split_weights[name], weight, atol=1e-4), name


def test_an_update_makes_good_tokens_likelier_and_bad_ones_rarer():
    rows = random_rows(3)
    batches = micro_batches(rows, token_budget=10_000)
    model = tiny_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def objective() -> float:
        with torch.no_grad():
            return sum(float((token_logprobs(model, b) * b.weights_K).sum()) for b in batches)

    before = objective()
    for _ in range(3):
        policy_update(model, optimizer, batches)
    assert objective() > before


def test_on_policy_the_engines_logprobs_are_only_measured():
    rows = random_rows(4)
    metrics, weights = step(rows, 64, loss=LossOptions())
    assert metrics["ratio_max"] == 1
    assert metrics["kl_k3"] == 0
    assert 0.1 < metrics["engine_difference"] < 0.5
    silent = [replace(r, old_logprobs=np.zeros_like(r.old_logprobs)) for r in rows]
    assert all(
        torch.equal(weights[name], weight)
        for name, weight in step(silent, 64, loss=LossOptions())[1].items()
    )


def test_nothing_to_train_is_no_step():
    metrics, weights = step([], 64)
    assert (metrics["trained_tokens"], metrics["micro_batches"], metrics["stepped"]) == (0, 0, 0)
    assert metrics["skipped"] == "nothing to train"
    assert metrics.keys() == step(random_rows(2), 64)[0].keys(), "each row has the same columns"
    assert all(torch.equal(weights[name], p) for name, p in tiny_model().named_parameters())


def test_a_gradient_that_is_not_finite_is_not_taken():
    rows = random_rows(5)
    rows[0] = replace(rows[0], weights=np.full_like(rows[0].weights, np.inf))
    metrics, weights = step(rows, 64)
    assert (metrics["stepped"], metrics["skipped"]) == (0, "the gradient is not finite")
    assert all(torch.equal(weights[name], p) for name, p in tiny_model().named_parameters())


def test_the_gradient_is_clipped_to_the_given_norm():
    metrics, weights = step(random_rows(6), 10_000, optim=OptimOptions(max_grad_norm=1e-12))
    assert metrics["grad_norm"] > 1e-3
    # Adam's step of a gradient far below its eps vanishes; the weight decay is all that is left.
    assert all(
        torch.allclose(weights[n], p * (1 - 1e-5), atol=2e-6)
        for n, p in tiny_model().named_parameters()
    )


def test_a_batch_can_be_moved():
    (batch,) = micro_batches(random_rows(7), token_budget=10_000)
    moved = batch.to("cpu")
    assert isinstance(moved, MicroBatch)
    assert torch.equal(moved.token_ids_N, batch.token_ids_N)
