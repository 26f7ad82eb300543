"""Objectives and corrections by hand, on single tokens. Comparison with TRL's:
`test_against_trl.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hrm_agent.errors import ConfigError
from hrm_agent.training.update.objectives import (
    OBJECTIVES,
    Counts,
    LossOptions,
    TrainedTokens,
    corrections,
    k3,
    mismatch,
    policy_loss,
)


def tokens(
    ratios: Sequence[float],
    weights: Sequence[float],
    sequences: Sequence[int] | None = None,
    **others: Any,
) -> TrainedTokens:
    """Tokens whose old log-probs are -1."""
    sequences_K = torch.tensor(sequences or [0] * len(ratios))
    lengths_K = torch.tensor([float((sequences_K == each).sum()) for each in sequences_K])
    logprobs_K = (torch.tensor(ratios).log() - 1).requires_grad_()
    return TrainedTokens(
        logprobs_K,
        -torch.ones(len(ratios)),
        torch.tensor(weights),
        sequences_K,
        lengths_K,
        **others,
    )


def loss_and_gradient(
    given: TrainedTokens, counts: Counts, **options: Any
) -> tuple[float, list[float]]:
    loss, _ = policy_loss(given, counts, LossOptions(**options))
    loss.backward()
    assert given.logprobs_K.grad is not None
    return float(loss.detach()), given.logprobs_K.grad.tolist()


def test_cispo_bounds_the_weight_and_keeps_the_gradient() -> None:
    given = tokens([1.5, 0.5, 1.5], [1.0, 1.0, -1.0])
    loss, gradient = loss_and_gradient(given, Counts(1, 1), objective="cispo")
    assert gradient == pytest.approx([-1.28, -0.5, 1.28])
    assert loss == pytest.approx(
        sum(g * p for g, p in zip(gradient, given.logprobs_K.tolist(), strict=True))
    )


def test_gspo_has_one_ratio_for_a_rollout() -> None:
    given = tokens([1.2, 0.9, 3.0], [1.0, 1.0, 1.0], [0, 0, 1])
    loss, gradient = loss_and_gradient(
        given, Counts(3, 2), objective="gspo", aggregation="sequence"
    )
    mean = math.sqrt(1.2 * 0.9)
    assert loss == pytest.approx(-(mean + 1.28) / 2)
    assert gradient == pytest.approx([-mean / 4, -mean / 4, 0.0]), (
        "the second rollout is clipped as a whole"
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, -(1 + 1 + 3) / 3),
        ({"aggregation": "sequence"}, -(1 + 3) / 2),
        ({"aggregation": "constant", "constant": 10.0}, -(1 + 1 + 3) / 20),
    ],
)
def test_aggregations(options: dict[str, Any], expected: float) -> None:
    given = tokens([1.0, 1.0, 1.0], [1.0, 1.0, 3.0], [0, 0, 1])
    assert loss_and_gradient(given, Counts(3, 2), **options)[0] == pytest.approx(expected)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_on_policy_all_objectives_have_the_gradient_of_the_policy(objective: str) -> None:
    weights = [1.0, -2.0, 0.5]
    _, gradient = loss_and_gradient(tokens([1.0] * 3, weights), Counts(3, 1), objective=objective)
    assert gradient == pytest.approx([-weight / 3 for weight in weights])


def test_the_divergence_is_added_and_not_corrected() -> None:
    reference_K = torch.tensor([-1.5, -0.5])
    given = tokens(
        [1.0, 1.0], [0.0, 0.0], corrections_K=torch.zeros(2), reference_logprobs_K=reference_K
    )
    loss, metrics = policy_loss(given, Counts(2, 1), LossOptions(kl_coef=0.1))
    by_hand = sum(math.exp(d) - 1 - d for d in (-0.5, 0.5)) / 2
    assert float(metrics["kl_reference"]) == pytest.approx(by_hand)
    assert float(loss.detach()) == pytest.approx(0.1 * by_hand)


@given(st.lists(st.floats(-3, 0), min_size=1), st.floats(-3, 0))
def test_k3_is_never_negative(logprobs: list[float], reference: float) -> None:
    given = torch.tensor(logprobs, dtype=torch.float64)
    assert (k3(given, torch.full_like(given, reference)) >= -1e-12).all()


@pytest.mark.parametrize(
    ("level", "mode", "expected"),
    [
        ("token", "truncate", [2.0, 0.5, 3.0, 3.0]),
        ("token", "mask", [2.0, 0.5, 0.0, 3.0]),
        ("sequence", "truncate", [1.0, 1.0, 3.0, 3.0]),
        ("sequence", "mask", [1.0, 1.0, 0.0, 0.0]),
    ],
)
def test_corrections(level: str, mode: str, expected: list[float]) -> None:
    trainer_K = torch.tensor([2.0, 0.5, 4.0, 3.0]).log()
    options = LossOptions(correction=level, correction_mode=mode, correction_cap=3.0)  # type: ignore[arg-type]
    found = corrections(trainer_K, torch.zeros(4), torch.tensor([0, 0, 1, 1]), options)
    assert found.weights_K.tolist() == pytest.approx(expected)
    assert found.cut_K.tolist() == [False, False, True, level == "sequence"]


def test_where_engine_and_trainer_agree_every_token_counts() -> None:
    found = mismatch(torch.zeros(4), torch.zeros(4), None, 4)
    assert {name: float(value) for name, value in found.items()} == {
        "engine_difference": 0,
        "mismatch_kl": 0,
        "importance_mean": 1,
        "importance_square": 1,
        "importance_cut": 0,
    }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"clip_low": 1.0}, "clip_low is 1"),
        ({"clip_high": 0.0}, "clip_high is 0"),
        ({"constant": -1.0}, "constant is -1"),
        ({"kl_coef": -0.1}, "kl_coef is -0.1"),
        ({"correction_cap": math.nan}, "correction_cap is nan"),
        ({"max_staleness": -1}, "max_staleness is -1"),
        ({"dual_clip": 0.5}, "dual_clip is 0.5"),
        ({"dual_clip": 3.0, "objective": "gspo"}, "the objective is gspo"),
        ({"correction": "token", "old_logprobs": "engine"}, "no effect with old_logprobs = engine"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        LossOptions(**options)
