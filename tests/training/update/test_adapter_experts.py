"""Adapters on mixtures of experts: the router is left alone, and what was made is trained on and
served.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from hrm_agent.errors import ConfigError, ModelError
from hrm_agent.models.loading.policy_loader import load_policy
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.update.learner import Learner
from tests.support.training.architectures import EXPERTS, folder_of
from tests.training.update.test_adapters import batch_of, weights_of


def learner(policy: Path, **keys: Any) -> Learner:
    config = GrpoConfig.of(**{"policy": str(policy), "lora_rank": 4, "seed": 3, **keys})
    return Learner(config, Accelerator(cpu=True))


def adapted(names: set[str], part: str) -> bool:
    return any(f".{part}." in name for name in names)


@pytest.mark.parametrize("kind", EXPERTS)
def test_an_adapter_of_a_mixture_is_trained_on_and_served_as_it_was_made(
    kind: str, tmp_path: Path
) -> None:
    ours = learner(folder_of(tmp_path / kind, kind, **EXPERTS[kind]))
    names = set(weights_of(ours.model, trained=True))
    assert adapted(names, "q_proj") and adapted(names, "experts") == (
        kind in ("mixtral", "qwen3_moe")
    )
    assert not any("gate." in name or "router" in name for name in names), (
        "the router is left alone"
    )
    frozen = weights_of(ours.model, trained=False)
    for _ in range(2):
        row = ours.update([batch_of(ours.engine)], 2e-2)
        assert row["stepped"] and row["engine_difference"] < 2e-6
    after = weights_of(ours.model, trained=True)
    assert all(
        torch.equal(each, frozen[name])
        for name, each in weights_of(ours.model, trained=False).items()
    )
    ours.save(tmp_path / "adapter")

    going_on = learner(tmp_path / "adapter")
    assert all(
        torch.equal(each, after[name])
        for name, each in weights_of(going_on.model, trained=True).items()
    )
    sampled = batch_of(ours.engine)
    engines: list[Any] = [going_on.engine, load_policy(str(tmp_path / "adapter")), ours.engine]
    for engine in engines[:2]:
        again = batch_of(engine)
        assert torch.equal(again.token_ids_N, sampled.token_ids_N)
        torch.testing.assert_close(again.old_logprobs_K, sampled.old_logprobs_K, rtol=0, atol=1e-5)
    assert going_on.update([sampled], 1e-2)["stepped"]
    for engine in engines:
        engine.close()


def test_the_router_is_adapted_where_it_is_named(tmp_path: Path) -> None:
    policy = folder_of(tmp_path / "model", "mixtral", **EXPERTS["mixtral"])
    ours = learner(policy, lora_targets=("q_proj", "gate"))
    assert adapted(set(weights_of(ours.model, trained=True)), "gate")
    ours.save(tmp_path / "adapter")
    kept = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (kept["target_modules"], kept["target_parameters"]) == (["q_proj"], ["gate.weight"])
    assert adapted(set(weights_of(learner(tmp_path / "adapter").model, trained=True)), "gate")
    learner(tmp_path / "adapter", lora_targets=("gate", "q_proj"))
    with pytest.raises(
        ConfigError, match=r"lora_targets = q_proj, but the adapter in .* has q_proj, gate\.weight"
    ):
        learner(tmp_path / "adapter", lora_targets=("q_proj",))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"lora_dropout": 0.1},
            "takes no adapter on all-linear: .*does not work with lora_dropout",
        ),
        ({"lora_targets": ("w1",)}, "without also targeting w3"),
        ({"lora_roles": ("solve",)}, "Adapters of several roles cannot be on '.*experts'"),
    ],
)
def test_what_experts_do_not_take_is_said(keys: dict[str, Any], said: str, tmp_path: Path) -> None:
    policy = folder_of(tmp_path / "model", "mixtral", **EXPERTS["mixtral"])
    with pytest.raises(ModelError, match=said):
        learner(policy, **keys)
