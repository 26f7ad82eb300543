"""Updates of several optimiser steps, of split rollouts and of stale tokens. A single step gives
the same result as before.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from hrm_agent.errors import ConfigError, ModelError
from hrm_agent.models import GenerationRequest
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.config.parts import AdapterPart
from hrm_agent.training.select.roc import select
from hrm_agent.training.update.batch import MicroBatch, Row, micro_batches, split_kept
from hrm_agent.training.update.learner import Learner
from hrm_agent.training.update.logprobs import token_logprobs
from hrm_agent.training.update.objectives import LossOptions
from hrm_agent.training.update.optimizer_step import OptimOptions, fresh_only, policy_update
from hrm_agent.training.update.trained_policy import TrainedPolicy
from hrm_agent.trajectory import Sampling
from tests.support.training.builders import group, tiny_model
from tests.training.update.test_adapters import batch_of
from tests.training.update.test_loss import random_rows

UNBOUNDED = OptimOptions(max_grad_norm=1e9)
ENGINE: dict[str, Any] = {"old_logprobs": "engine"}

Weights = dict[str, torch.Tensor]


def numbered(rows: list[Row], each: int = 2) -> list[Row]:
    """The rows as those of trajectories that have `each` of them."""
    of = [index // each for index in range(len(rows))]
    lengths = [
        sum(int(r.loss_mask.sum()) for r, s in zip(rows, of, strict=True) if s == n) for n in of
    ]
    return [
        replace(r, sequence=s, sequence_tokens=n) for r, s, n in zip(rows, of, lengths, strict=True)
    ]


ROWS = numbered(random_rows(11, 8))


def updated(
    batches: list[MicroBatch] | list[list[MicroBatch]],
    options: LossOptions | None = None,
    **others: Any,
) -> tuple[dict[str, Any], Weights]:
    """Metrics of an update, and how the weights moved under plain descent at rate 0.1."""
    model = tiny_model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    descent = torch.optim.SGD(model.parameters(), lr=0.1)
    metrics = policy_update(model, descent, batches, loss=options, **{"optim": UNBOUNDED, **others})
    return metrics, {name: before[name] - p.detach() for name, p in model.named_parameters()}


def assert_close(ours: Weights, theirs: Weights) -> None:
    assert max(float(each.abs().max()) for each in theirs.values()) > 1e-4, "the weights must move"
    for name, each in ours.items():
        torch.testing.assert_close(each, theirs[name], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("on_policy", [True, False])
def test_one_step_is_what_it_was_before_there_were_several_to_the_last_bit(on_policy: bool) -> None:
    """Computed by hand: the surrogate summed over the tokens of the batch, clipping by norm, AdamW."""
    batches = micro_batches(ROWS, token_budget=64)
    total = sum(batch.trained_tokens for batch in batches)
    ours, theirs = tiny_model(), tiny_model()
    expected = torch.optim.AdamW(theirs.parameters(), lr=1e-3, weight_decay=0.01)
    theirs.train()
    for batch in batches:
        logprobs = token_logprobs(theirs, batch)
        ratio = (logprobs - (logprobs.detach() if on_policy else batch.old_logprobs_K)).exp()
        clipped = ratio.clamp(1 - 0.2, 1 + 0.28)
        (
            -torch.minimum(ratio * batch.weights_K, clipped * batch.weights_K).sum() / total
        ).backward()
    norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
    expected.step()

    options = LossOptions(old_logprobs="trainer" if on_policy else "engine")
    optimizer = torch.optim.AdamW(ours.parameters(), lr=1e-3, weight_decay=0.01)
    metrics = policy_update(ours, optimizer, batches, loss=options)
    assert metrics["grad_norm"] == float(norm)
    assert all(torch.equal(p, theirs.get_parameter(name)) for name, p in ours.named_parameters())


@pytest.mark.parametrize(
    "options",
    [
        {"objective": "gspo", "clip_low": 0.05, "clip_high": 0.05, **ENGINE},
        {"objective": "gspo", "aggregation": "sequence", **ENGINE},
        {"correction": "sequence", "correction_cap": 1.5},
        {"correction": "sequence", "correction_mode": "mask", "objective": "gspo"},
        {"correction": "token", "correction_cap": 1.2},
        {"aggregation": "sequence"},
        {"aggregation": "constant", "constant": 9.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("epochs", [1, 2])
def test_rollouts_whose_tokens_lie_in_several_micro_batches(
    options: dict[str, Any], epochs: int
) -> None:
    whole, split = micro_batches(ROWS, token_budget=10_000), micro_batches(ROWS, token_budget=1)
    optim = OptimOptions(epochs=epochs, max_grad_norm=1e9)
    metrics, expected = updated(whole, LossOptions(**options), optim=optim)
    many, found = updated(split, LossOptions(**options), optim=optim)
    assert (metrics["micro_batches"], many["micro_batches"]) == (epochs, 8 * epochs)
    assert_close(found, expected)
    for name in metrics.keys() - {"micro_batches", "skipped"}:
        assert many[name] == pytest.approx(metrics[name], abs=1e-5, rel=1e-4, nan_ok=True), name


def test_old_log_probs_are_of_the_weights_before_the_first_step() -> None:
    """Recorded log-probs have no effect if they are recomputed. The ratios of the second step
    differ from 1.
    """
    parts = [micro_batches(ROWS[:4], token_budget=64), micro_batches(ROWS[4:], token_budget=64)]
    metrics, found = updated(parts)
    silent = [
        [replace(b, old_logprobs_K=torch.zeros_like(b.old_logprobs_K)) for b in part]
        for part in parts
    ]
    assert all(torch.equal(found[name], each) for name, each in updated(silent)[1].items())
    assert metrics["ratio_max"] > 1 and metrics["kl_k3"] > 0
    assert (metrics["optimizer_steps"], metrics["stepped"]) == (2, 1)
    together = updated(micro_batches(ROWS, token_budget=64))[0]
    assert metrics["trained_tokens"] == together["trained_tokens"]
    for name in ("engine_difference", "mismatch_kl", "effective_sample_size"):
        assert metrics[name] == pytest.approx(together[name], abs=1e-5), (
            "measured before the first step"
        )


def test_two_mini_batches_are_two_updates_that_know_the_weights_before_both() -> None:
    parts = [micro_batches(ROWS[:4], token_budget=64), micro_batches(ROWS[4:], token_budget=64)]
    model = tiny_model()
    with torch.no_grad():
        old = [token_logprobs(model, batch) for batch in parts[1]]
    second = [
        replace(batch, old_logprobs_K=each) for batch, each in zip(parts[1], old, strict=True)
    ]
    descent = torch.optim.SGD(model.parameters(), lr=0.1)
    policy_update(model, descent, parts[0], optim=UNBOUNDED)
    policy_update(model, descent, second, optim=UNBOUNDED, loss=LossOptions(old_logprobs="engine"))
    _, found = updated(parts)
    start = tiny_model()
    assert_close(
        found,
        {n: start.get_parameter(n).detach() - p.detach() for n, p in model.named_parameters()},
    )


def test_a_step_that_is_not_finite_does_not_undo_the_others() -> None:
    broken = [replace(ROWS[0], weights=np.full_like(ROWS[0].weights, np.inf))]
    parts = [micro_batches(broken, token_budget=64), micro_batches(ROWS[1:], token_budget=64), []]
    metrics, found = updated(parts)
    assert (metrics["optimizer_steps"], metrics["stepped"], metrics["skipped"]) == (1, 1, None)
    assert math.isfinite(metrics["grad_norm"])
    assert all(torch.isfinite(each).all() for each in found.values())


def aged(rows: list[Row]) -> list[Row]:
    """Tokens of versions 0 to 3, in turn."""
    return [replace(row, versions=np.arange(len(row)) % 4) for row in rows]


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
def test_tokens_that_are_too_stale_are_context(aggregation: str) -> None:
    rows = aged(ROWS)
    options = LossOptions(max_staleness=1, aggregation=aggregation, **ENGINE)  # type: ignore[arg-type]
    metrics, found = updated(micro_batches(rows, token_budget=64), options, version=3)
    fresh = [replace(row, loss_mask=row.loss_mask & (row.versions >= 2)) for row in rows]
    expected = LossOptions(aggregation=aggregation, **ENGINE)  # type: ignore[arg-type]
    by_hand, theirs = updated(micro_batches(numbered(fresh), token_budget=64), expected, version=3)
    assert_close(found, theirs)
    total = sum(int(row.loss_mask.sum()) for row in rows)
    assert metrics["trained_tokens"] == by_hand["trained_tokens"] == total - metrics["stale_tokens"]
    assert 0 < metrics["stale_tokens"] < total and by_hand["stale_tokens"] == 0
    behind = [3 - v for row in rows for v, m in zip(row.versions, row.loss_mask, strict=True) if m]
    assert metrics["staleness_mean"] == pytest.approx(np.mean(behind))


def test_where_all_tokens_are_too_stale_no_step_is_taken() -> None:
    batches = micro_batches(ROWS, token_budget=64)
    metrics, found = updated(batches, LossOptions(max_staleness=2), version=9)
    assert metrics["skipped"] == "all tokens are of weights that are too old"
    assert (metrics["trained_tokens"], metrics["stepped"]) == (0, 0)
    assert metrics.keys() == updated(batches)[0].keys()
    assert not any(each.any() for each in found.values())
    assert fresh_only(batches, 9, 2) == []
    (kept,) = fresh_only(micro_batches(ROWS, token_budget=10_000), 9, 9)
    assert kept.trained_tokens == sum(batch.trained_tokens for batch in batches)


def test_the_starting_policy_holds_the_policy_back() -> None:
    """The divergence has no gradient at the reference itself. Elsewhere its gradient leads to the
    reference.
    """
    batches = micro_batches(ROWS, token_budget=64)
    plain, pulled = (
        updated(batches)[1],
        updated(batches, LossOptions(kl_coef=0.5), reference=tiny_model())[1],
    )
    assert_close(pulled, plain)
    still = [replace(batch, weights_K=torch.zeros_like(batch.weights_K)) for batch in batches]
    model, reference = tiny_model(), tiny_model(1)
    descent = torch.optim.SGD(model.parameters(), lr=0.05)
    found = [
        policy_update(
            model,
            descent,
            still,
            loss=LossOptions(kl_coef=1.0),
            optim=UNBOUNDED,
            reference=reference,
        )
        for _ in range(4)
    ]
    divergences = [each["kl_reference"] for each in found]
    assert divergences == sorted(divergences, reverse=True) and divergences[-1] < divergences[0]
    assert math.isnan(updated(batches)[0]["kl_reference"])
    assert not any(p.grad is not None for p in reference.parameters())


def test_what_the_loss_needs_is_demanded() -> None:
    batches = micro_batches(ROWS, token_budget=64)
    with pytest.raises(ValueError, match="no reference policy"):
        updated(batches, LossOptions(kl_coef=0.1))
    with pytest.raises(ValueError, match="version of the policy"):
        updated(batches, LossOptions(max_staleness=0))
    with pytest.raises(ConfigError, match="are impossible"):
        OptimOptions(epochs=0)
    hot = [
        replace(batch, temperatures_K=torch.full_like(batch.temperatures_K, 0.5))
        for batch in batches
    ]
    assert updated(hot)[0]["stepped"] == 1
    with pytest.raises(ModelError, match=r"sampled at temperature 0\.5"):
        updated(hot, LossOptions(correction="token"))


def test_mini_batches_are_of_whole_rollouts_and_the_same_each_time() -> None:
    overlays = select(group(5, 6), 20, "grpo", seed=0)
    parts = split_kept(overlays, 3, seed=1)
    assert sorted(map(len, parts)) == [3, 4, 4]
    assert {o.trajectory_id for part in parts for o in part} == {o.trajectory_id for o in overlays}
    assert parts == split_kept(overlays, 3, seed=1) != split_kept(overlays, 3, seed=2)
    assert split_kept(overlays, 1, seed=1) == [overlays]
    assert split_kept([], 2, seed=1) == [[], []]
    with pytest.raises(ConfigError, match="into 0 mini-batches"):
        split_kept(overlays, 0, seed=1)


def test_the_reference_is_the_policy_that_training_starts_with() -> None:
    reference = TrainedPolicy.load(
        "builtin:cold-start", AdapterPart(), dtype="float32", device="cpu", seed=0
    ).reference()
    assert not reference.training
    assert not any(p.requires_grad for p in reference.parameters())
    assert sum(p.numel() for p in reference.parameters()) > 100_000


@pytest.mark.parametrize("behind", [0, 1])
def test_an_update_frees_the_memory_of_the_cache_unless_rollouts_go_on(behind: int) -> None:
    config = GrpoConfig.of(seed=3, versions_behind=behind, old_logprobs="engine")
    learner = Learner(config, Accelerator(cpu=True))
    engine: Any = learner.engine
    pool = engine._rows.pool
    first = pool.length
    engine.submit(GenerationRequest(tuple(range(3, 3 + 2 * first)), Sampling(max_tokens=2))).result(
        60
    )
    grown = pool.length
    assert grown > first
    learner.update([batch_of(engine)], 1e-3)
    assert pool.length == (grown if behind else first)
    engine.close()
