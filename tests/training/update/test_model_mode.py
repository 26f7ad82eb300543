"""An update of reinforcement learning drops nothing: the policy that is measured is the policy."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from langchain_core.messages import AIMessage, HumanMessage
from torch import nn

from hrm_agent.errors import ConfigError
from hrm_agent.models.codec.bytes import ByteCodec
from hrm_agent.models.loading.policy_loader import model_folder
from hrm_agent.training.config.commands import GrpoConfig, SftConfig
from hrm_agent.training.grpo import train
from hrm_agent.training.metrics import read_metrics
from hrm_agent.training.sft import Conversation, train_sft
from hrm_agent.training.update.batch import ForwardName, micro_batches
from hrm_agent.training.update.learner import Learner
from hrm_agent.training.update.logprobs import token_logprobs
from hrm_agent.training.update.model_mode import as_it_answers, in_update
from hrm_agent.training.update.objectives import LossOptions
from hrm_agent.training.update.optimizer_step import OptimOptions, policy_update
from hrm_agent.training.update.trained_policy import TrainedPolicy
from tests.support.training.architectures import DROPPING, folder_of, random_model
from tests.support.training.builders import tiny_model
from tests.training.update.test_adapters import batch_of
from tests.training.update.test_loss import random_rows
from tests.training.update.test_optimizer_step import numbered

ROWS = numbered(random_rows(1, 6))


def update(
    model: nn.Module, forward: ForwardName = "padded", rate: float = 0.0, **loss: Any
) -> dict[str, Any]:
    """Update on two mini-batches and two epochs, with the starting policy as reference."""
    reference = copy.deepcopy(model).eval().requires_grad_(False)
    parts = [micro_batches(part, token_budget=64, forward=forward) for part in (ROWS[:4], ROWS[4:])]
    return policy_update(
        model,
        torch.optim.SGD(model.parameters(), lr=rate),
        parts,
        loss=LossOptions(kl_coef=0.05, **loss),
        optim=OptimOptions(epochs=2),
        reference=reference,
    )


@pytest.mark.parametrize("forward", ["padded", "packed"])
@pytest.mark.parametrize("kind", DROPPING)
def test_nothing_is_dropped_whatever_the_models_configuration_says(
    kind: str, forward: ForwardName
) -> None:
    model = random_model(kind, **DROPPING[kind]).train()
    metrics = update(model, forward)
    assert (metrics["kl_reference"], metrics["ratio_max"], metrics["kl_k3"]) == (0, 1, 0)
    assert (metrics["clip_fraction_low"], metrics["clip_fraction_high"]) == (0, 0)
    assert metrics["optimizer_steps"] == 4 and metrics["grad_norm"] > 0
    assert all(module.training for module in model.modules()), "the mode is as it was"


class Counting(nn.BatchNorm1d):
    """Running statistics, as a layer of a model."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden.flatten(0, 1)).view_as(hidden)


def test_running_statistics_stay_as_they_are_and_are_used() -> None:
    model: Any = tiny_model()
    model.model.norm = nn.Sequential(model.model.norm, Counting(32))
    before = {name: each.clone() for name, each in model.named_buffers()}
    assert update(model.train(), rate=0.01)["optimizer_steps"] == 4
    assert all(torch.equal(each, before[name]) for name, each in model.named_buffers())
    assert update(model)["kl_reference"] == 0


@pytest.mark.parametrize("kind", ["gpt2", "opt", "granite"])
def test_layers_that_are_computed_again_drop_nothing_either(kind: str) -> None:
    weights: list[dict[str, torch.Tensor]] = []
    for again in (False, True):
        model = random_model(kind, **DROPPING[kind]).train()
        if again:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        calls: list[bool] = []
        layer = next(each for each in model.modules() if isinstance(each, nn.ModuleList))[0]
        # inside of the layer: its own hooks may be called outside of what is computed again
        next(layer.children()).register_forward_pre_hook(
            lambda *_, layer=layer, calls=calls: calls.append(layer.training)
        )
        batches = micro_batches(ROWS, token_budget=10_000)
        policy_update(model, torch.optim.SGD(model.parameters(), lr=0.1), batches)
        assert calls == [False] * (2 if again else 1)
        weights.append(model.state_dict())
    assert all(torch.equal(each, weights[1][name]) for name, each in weights[0].items())


def test_each_part_of_a_model_comes_back_to_its_own_mode() -> None:
    model: Any = tiny_model().train()
    model.model.layers[0].eval()
    before = [module.training for module in model.modules()]
    for mode in (as_it_answers, in_update):
        with contextlib.suppress(RuntimeError), mode(model):
            assert not any(module.training for module in model.modules())
            raise RuntimeError("on the way")
        assert [module.training for module in model.modules()] == before


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("gpt2", {}),
        ("opt", {}),
        ("granite", {}),
        ("opt", {"gradient_checkpointing": True}),
        ("granite", {"lora_rank": 2}),
    ],
)
def test_engine_trainer_and_reference_are_one_policy_at_first(
    kind: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / kind, kind, **DROPPING[kind])
    keys = {"kl_coef": 0.05, "mini_batches": 2, "epochs": 2, "seed": 3, **keys}
    ours = Learner(GrpoConfig.of(policy=str(folder), **keys), Accelerator(cpu=True))
    batch = batch_of(ours.engine)
    first = ours.update([[batch], [batch]], 0.0)
    assert (first["kl_reference"], first["ratio_max"]) == (0, 1) and first[
        "engine_difference"
    ] < 1e-5
    assert ours.update([[batch], [batch]], 1e-2)["stepped"]
    assert ours.update([[batch], [batch]], 1e-2)["kl_reference"] > 0, (
        "it is measured, and not switched off"
    )
    ours.engine.close()


RUBRIC = """
def rubric(trajectory):
    ids = [token for call in trajectory.own_calls for token in call.token_ids]
    return sum(ids) % 97 / 96
"""


@pytest.mark.whole
def test_the_first_step_of_a_run_has_no_divergence(tmp_path: Path) -> None:
    policy = Path(shutil.copytree(model_folder("builtin:cold-start"), tmp_path / "policy"))
    settings = json.loads((policy / "config.json").read_text())
    (policy / "config.json").write_text(json.dumps({**settings, "attention_dropout": 0.2}))
    (tmp_path / "scores.py").write_text(RUBRIC)
    config = GrpoConfig.of(
        policy=str(policy),
        rewards=f"{tmp_path}/scores.py:rubric",
        steps=2,
        prompts_per_step=2,
        group_size=4,
        algorithm="grpo",
        kl_coef=0.05,
        seed=1,
        context={"max_turns": 4, "max_tokens": 96},
    )
    asyncio.run(train(config, tmp_path / "run"))
    first, second = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert first["stepped"] and second["stepped"]
    assert first["kl_reference"] == 0
    assert first["engine_difference"] < 1e-5 and second["engine_difference"] < 1e-5


def test_an_adapters_own_dropout_acts_where_nothing_is_compared_and_is_refused_elsewhere() -> None:
    part = GrpoConfig.of(lora_rank=2, lora_dropout=0.5).adapter
    policy = TrainedPolicy.load("builtin:cold-start", part, dtype="float32", device="cpu", seed=0)
    assert not any(module.training for module in policy.model.modules())
    with in_update(policy.model):
        active = [name for name, module in policy.model.named_modules() if module.training]
    assert active and all("lora_dropout" in name for name in active)
    for keys in (
        {"old_logprobs": "engine"},
        {"correction": "token"},
        {"source": ("runs/a",)},
        {"epochs": 2},
    ):
        with pytest.raises(ConfigError, match="lora_dropout does not go with"):
            GrpoConfig.of(lora_rank=2, lora_dropout=0.5, **keys)


def test_fine_tuning_keeps_the_dropout_of_the_models_configuration() -> None:
    rows: list[float] = []
    for rate in (0.0, 0.5):
        model = random_model(
            "granite", vocab_size=400, **{**DROPPING["granite"], "attention_dropout": rate}
        )
        talk = [Conversation((HumanMessage("one two"), AIMessage("three four")))] * 2
        rows.append(
            train_sft(model, ByteCodec(), talk, SftConfig(steps=1, batch_size=2))[0]["loss"]
        )
        assert not model.training
    assert rows[0] != rows[1]


def test_log_probs_with_a_model_in_training_are_the_callers_choice() -> None:
    model = random_model("gpt2", **DROPPING["gpt2"])
    (batch,) = micro_batches(ROWS, token_budget=10_000)
    with torch.no_grad():
        answers = token_logprobs(model, batch)
        with as_it_answers(model.train()):
            assert torch.equal(token_logprobs(model, batch), answers)
        assert not torch.equal(token_logprobs(model, batch), answers)
