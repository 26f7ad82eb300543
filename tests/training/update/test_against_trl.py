"""Every objective, aggregation and correction equals its like in TRL's GRPOTrainer, in loss and
gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
import torch

from hrm_agent.training.update.advantages import by_group
from hrm_agent.training.update.batch import build_batches, split_kept
from hrm_agent.training.update.objectives import LossOptions
from hrm_agent.training.update.optimizer_step import OptimOptions, policy_update
from hrm_agent.trajectory import Overlay
from tests.support.training.builders import tiny_model
from tests.support.training.trl_oracle import TRL_EPS, kept, rollouts, trainer_of, trl_inputs

if TYPE_CHECKING:
    from trl.trainer.grpo_trainer import GRPOTrainer

pytestmark = pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")

RECORDED = rollouts()
UNBOUNDED = OptimOptions(max_grad_norm=1e9)
LENGTH = 32
"""The fixed length of TRL's Dr. GRPO: its longest completion."""

Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def module_trainer(tmp_path_factory: pytest.TempPathFactory) -> GRPOTrainer:
    return trainer_of(RECORDED, 1.0, tmp_path_factory.mktemp("trl"))


@pytest.fixture
def trainer(module_trainer: GRPOTrainer) -> GRPOTrainer:
    """TRL's trainer, with the initial weights of all tests."""
    module_trainer.model.load_state_dict(tiny_model().state_dict())
    module_trainer.model.zero_grad()
    return module_trainer


def configure(trainer: GRPOTrainer, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any]) -> None:
    for name, value in facts.items():
        monkeypatch.setattr(
            trainer.args if name == "delta" else trainer,
            name,
            value,
            raising=name != "_last_loaded_step",
        )


def logprobs(trainer: GRPOTrainer, inputs: dict[str, Any]) -> torch.Tensor:
    """Log-probs that TRL computes under the current weights."""
    token_ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    with torch.no_grad():
        return trainer._get_per_token_logps_and_entropies(
            trainer.model, token_ids, mask, inputs["completion_ids"].size(1)
        )[0]


def with_reference(
    trainer: GRPOTrainer,
    monkeypatch: pytest.MonkeyPatch,
    inputs: dict[str, Any],
    coefficient: float,
) -> None:
    """Set `beta` and the reference log-probs. TRL itself wraps its reference model when the trainer
    is constructed.
    """
    trainer.model.load_state_dict(tiny_model(1).state_dict())
    inputs["ref_per_token_logps"] = logprobs(trainer, inputs)
    trainer.model.load_state_dict(tiny_model().state_dict())
    monkeypatch.setattr(trainer, "beta", coefficient)
    monkeypatch.setattr(trainer.args, "use_bias_correction_kl", False)


def loss_and_gradient(trainer: GRPOTrainer, inputs: dict[str, Any]) -> tuple[float, Weights]:
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    gradients = {
        name.removeprefix("module."): p.grad.clone() for name, p in trainer.model.named_parameters()
    }
    return float(loss.detach()), gradients


def ours(
    overlays: Sequence[Overlay], options: LossOptions, **others: Any
) -> tuple[dict[str, Any], Weights]:
    """Metrics and gradient of one update. With plain descent at rate 1, the weights move by the
    gradient.
    """
    model = tiny_model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    batches = build_batches(RECORDED, overlays, token_budget=64)
    assert len(batches) > 1, "the case must split the batch"
    descent = torch.optim.SGD(model.parameters(), lr=1.0)
    metrics = policy_update(model, descent, batches, loss=options, optim=UNBOUNDED, **others)
    return metrics, {name: before[name] - p.detach() for name, p in model.named_parameters()}


def assert_alike(gradients: Weights, expected: Weights) -> None:
    assert max(float(each.abs().max()) for each in expected.values()) > 1e-2, (
        "the case must have a gradient"
    )
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("advantages", "options", "theirs"),
    [
        pytest.param("grpo", {"aggregation": "sequence"}, {"loss_type": "grpo"}, id="grpo"),
        pytest.param(
            "dr_grpo",
            {"aggregation": "constant", "constant": LENGTH},
            {"loss_type": "dr_grpo", "scale_rewards": "none"},
            id="dr_grpo",
        ),
        pytest.param("grpo", {}, {"loss_type": "dapo"}, id="dapo"),
        pytest.param("grpo", {}, {"loss_type": "bnpo"}, id="bnpo"),
        pytest.param(
            "grpo", {"dual_clip": 1.4}, {"loss_type": "dapo", "delta": 1.4}, id="dual clip"
        ),
        pytest.param(
            "grpo", {"objective": "cispo"}, {"loss_type": "cispo", "epsilon_high": 1.28}, id="cispo"
        ),
        pytest.param(
            "grpo",
            {"objective": "gspo", "aggregation": "sequence", "clip_low": 0.03, "clip_high": 0.04},
            {
                "loss_type": "grpo",
                "importance_sampling_level": "sequence",
                "epsilon_low": 0.03,
                "epsilon_high": 0.04,
            },
            id="gspo",
        ),
        pytest.param("grpo", {"kl_coef": 0.1}, {"loss_type": "dapo"}, id="reference"),
    ],
)
def test_objectives(
    trainer: GRPOTrainer,
    monkeypatch: pytest.MonkeyPatch,
    advantages: str,
    options: dict[str, Any],
    theirs: dict[str, Any],
) -> None:
    configure(trainer, monkeypatch, theirs)
    inputs = trl_inputs(RECORDED, trainer)
    overlays = by_group(kept(RECORDED), advantages, TRL_EPS)
    torch.testing.assert_close(
        torch.tensor([o.advantage for o in overlays]), inputs["advantages"], atol=1e-6, rtol=0
    )
    if "kl_coef" in options:
        with_reference(trainer, monkeypatch, inputs, options["kl_coef"])
    expected_loss, expected = loss_and_gradient(trainer, inputs)

    metrics, gradients = ours(
        overlays, LossOptions(old_logprobs="engine", **options), reference=tiny_model(1)
    )
    assert metrics["loss"] == pytest.approx(expected_loss, abs=1e-5)
    assert_alike(gradients, expected)
    logged = trainer._metrics["train"]
    if options.get("objective") == "cispo":
        assert (
            metrics["clip_fraction_high"]
            == pytest.approx(logged["cispo_clip_ratio"][-1], abs=1e-6)
            != 0
        )
    elif "objective" not in options:
        clipped = [metrics["clip_fraction_low"], metrics["clip_fraction_high"]]
        assert clipped == pytest.approx(
            [logged[f"clip_ratio/{side}_mean"][-1] for side in ("low", "high")]
        )
        assert min(clipped) > 0, "both bounds must be active"
    else:
        assert metrics["clip_fraction_low"] + metrics["clip_fraction_high"] > 0, (
            "a bound must be active"
        )
    if "kl_coef" in options:
        assert metrics["kl_reference"] == pytest.approx(logged["kl"][-1], abs=1e-5) != 0


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("mode", ["truncate", "mask"])
def test_importance_correction(
    trainer: GRPOTrainer, monkeypatch: pytest.MonkeyPatch, level: str, mode: str
) -> None:
    """TRL applies it to samples of vLLM, so it is configured as if the rollouts were vLLM's."""
    cap = 1.3 if level == "token" else 1.1
    configure(
        trainer,
        monkeypatch,
        {
            "use_vllm": True,
            "_last_loaded_step": trainer.state.global_step,
            "vllm_importance_sampling_correction": True,
            "vllm_importance_sampling_mode": f"{level}_{mode}",
            "vllm_importance_sampling_clip_max": cap,
            "vllm_importance_sampling_clip_min": None,
        },
    )
    trainer.model.train()
    inputs = trainer._generate_and_score_completions(
        [{"prompt": "w3", "index": i} for i in range(len(RECORDED))]
    )
    expected_loss, expected = loss_and_gradient(trainer, inputs)
    overlays = by_group(kept(RECORDED), "grpo", TRL_EPS)
    options = LossOptions(correction=level, correction_mode=mode, correction_cap=cap)  # type: ignore[arg-type]
    metrics, gradients = ours(overlays, options)
    assert 0 < metrics["importance_cut"] < 1, "the cap must act"
    assert metrics["loss"] == pytest.approx(expected_loss, abs=1e-5)
    assert_alike(gradients, expected)
    difference = trainer._metrics["train"]["sampling/sampling_logp_difference/mean"][-1]
    assert metrics["engine_difference"] == pytest.approx(difference, abs=1e-5)
    if level == "token":
        mean = trainer._metrics["train"]["sampling/importance_sampling_ratio/mean"][-1]
        assert metrics["importance_mean"] == pytest.approx(mean, abs=1e-5)


@pytest.mark.parametrize(("loss_type", "aggregation"), [("bnpo", "token"), ("grpo", "sequence")])
def test_two_mini_batches_and_two_epochs(
    trainer: GRPOTrainer, monkeypatch: pytest.MonkeyPatch, loss_type: str, aggregation: str
) -> None:
    """Old log-probs are those before the first of four optimiser steps, so that ratios leave 1 and
    are clipped.
    """
    configure(trainer, monkeypatch, {"loss_type": loss_type})
    inputs = trl_inputs(RECORDED, trainer)
    inputs["old_per_token_logps"] = logprobs(trainer, inputs)

    overlays = by_group(kept(RECORDED), "grpo", TRL_EPS)
    parts = split_kept(overlays, 2, seed=0)
    assert sorted(o.trajectory_id for part in parts for o in part) == sorted(
        o.trajectory_id for o in overlays
    )
    model, rate = tiny_model(), 0.3
    batches = [build_batches(RECORDED, part, token_budget=64) for part in parts]
    options = LossOptions(aggregation=aggregation)  # type: ignore[arg-type]
    descent = torch.optim.SGD(model.parameters(), lr=rate)
    metrics = policy_update(
        model, descent, batches, loss=options, optim=OptimOptions(epochs=2, max_grad_norm=1e9)
    )

    places = {trajectory.id: place for place, trajectory in enumerate(RECORDED)}
    theirs = torch.optim.SGD(trainer.model.parameters(), lr=rate)
    clipped, tokens = torch.zeros(2), 0.0
    for part in [*parts, *parts]:
        rows = torch.tensor([places[overlay.trajectory_id] for overlay in part])
        theirs.zero_grad()
        sliced = {name: value[rows] if value.ndim else value for name, value in inputs.items()}
        trainer.compute_loss(trainer.model, sliced).backward()
        theirs.step()
        logged = trainer._metrics["train"]
        count = float((sliced["completion_mask"] * sliced["tool_mask"]).sum())
        clipped += count * torch.tensor(
            [logged[f"clip_ratio/{side}_mean"][-1] for side in ("low", "high")]
        )
        tokens += count

    assert clipped.min() > 0, "both bounds must be active"
    ours_clipped = [metrics["clip_fraction_low"], metrics["clip_fraction_high"]]
    assert ours_clipped == pytest.approx((clipped / tokens).tolist(), abs=1e-6)
    assert (metrics["optimizer_steps"], metrics["stepped"], metrics["skipped"]) == (4, 1, None)
    assert metrics["trained_tokens"] == tokens / 2
    for name, parameter in trainer.model.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), parameter, atol=1e-5, rtol=1e-5)
