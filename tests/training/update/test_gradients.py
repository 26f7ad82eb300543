"""Numbers that are not finite: trainers skip such steps, and end if no step is possible."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from langchain_core.messages import AIMessage, HumanMessage
from safetensors.torch import load_file, save_file
from torch import nn

from hrm_agent.errors import ModelError, RunError
from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.testing import tiny_model, tiny_network
from hrm_agent.training.checkpoints import Checkpoints
from hrm_agent.training.config.commands import GrpoConfig, SftConfig
from hrm_agent.training.keeper import Keeper
from hrm_agent.training.metrics import METRICS_FILE, MetricsLog, read_metrics
from hrm_agent.training.sft import Conversation, train_sft
from hrm_agent.training.update.gradients import SkippedSteps, step_if_finite, weights_not_finite
from hrm_agent.training.update.learner import Learner
from hrm_agent.training.update.trained_policy import TrainedPolicy
from tests.training.update.test_adapters import batch_of

SIZES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
UNTIED = {**SIZES, "tie_word_embeddings": False}
GOOD = Conversation((HumanMessage("1 + 1"), AIMessage("2")))
BAD = Conversation((HumanMessage("1 + 1?"), AIMessage("2")))
"""Conversation with a token that no other row has."""


@pytest.fixture
def codec(tmp_path: Path) -> ChatTemplateCodec:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_model(tmp_path / "tokenizer", **SIZES))
    return ChatTemplateCodec(tokenizer)


def broken_at(model: Any, codec: ChatTemplateCodec) -> Any:
    """Model whose output is not finite for a text with a question mark."""
    (token,) = codec.tokenizer.encode("?", add_special_tokens=False)
    with torch.no_grad():
        model.get_input_embeddings().weight[token] = math.inf
    return model


def copied(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.clone() for name, each in model.state_dict().items()}


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_fine_tuning_leaves_out_a_step_and_says_so(
    codec: ChatTemplateCodec, average: float, tmp_path: Path
) -> None:
    model = broken_at(tiny_network(1, **UNTIED), codec)
    config = SftConfig(steps=6, batch_size=1, warmup_steps=0, cooldown=0.0, average=average)
    rows = train_sft(
        model, codec, [GOOD, BAD, GOOD], config, metrics_path=tmp_path / "metrics.jsonl"
    )
    stepped = [row["stepped"] for row in rows]
    assert sorted(stepped) == [0, 0, 1, 1, 1, 1]
    assert all(math.isfinite(row["grad_norm"]) == bool(row["stepped"]) for row in rows)
    assert weights_not_finite(model) == ["model.embed_tokens.weight"], (
        "the one that was given, and no other"
    )
    assert [row["stepped"] for row in read_metrics(tmp_path / "metrics.jsonl")] == stepped


def test_fine_tuning_ends_where_no_step_can_be_taken(codec: ChatTemplateCodec) -> None:
    model = broken_at(tiny_network(1, **UNTIED), codec)
    before = copied(model)
    with pytest.raises(
        RunError, match="None of the 3 steps could be taken: the gradient is not finite"
    ):
        train_sft(model, codec, [BAD], SftConfig(steps=3, batch_size=1))
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    with pytest.raises(RunError, match="None of the last 10 steps could be taken"):
        train_sft(model, codec, [BAD], SftConfig(steps=99, batch_size=1))


@pytest.fixture
def learner() -> Iterator[Learner]:
    ours = Learner(GrpoConfig.of(seed=3), Accelerator(cpu=True))
    yield ours
    ours.engine.close()


def test_reinforcement_learning_ends_where_no_step_can_be_taken(learner: Learner) -> None:
    batch = batch_of(learner.engine, weight=math.nan)
    for _ in range(9):
        row = learner.update([batch], 1e-3)
        assert (row["stepped"], row["skipped"]) == (0, "the gradient is not finite")
    with pytest.raises(RunError, match=r"None of the 9 steps"):
        learner.skipped.end()
    assert learner.update([], 1e-3)["stepped"] == 0, (
        "a step with nothing to learn from is another matter"
    )
    with pytest.raises(RunError, match=r"None of the last 10 steps.*the weights stay as they are"):
        learner.update([batch], 1e-3)
    assert learner.version == 10, "what no step was taken on is not published"


def test_steps_that_are_left_out_now_and_then_end_nothing() -> None:
    skipped = SkippedSteps()
    skipped.end()
    for step in range(40):
        skipped.count(stepped=step % 10 == 9)
    skipped.end()
    assert (skipped.steps, skipped.skipped) == (40, 36)


def test_a_step_that_ruins_the_weights_is_told_before_they_are_kept() -> None:
    model: Any = tiny_network(0, **SIZES)
    descent = torch.optim.SGD(model.parameters(), lr=3e38)
    for weight in model.parameters():
        weight.grad = torch.full_like(weight, 2.0)
    with pytest.raises(
        RunError, match=r"has made \d+ of .*not finite.*learning rate 3e\+38.*Checkpoints are of"
    ):
        step_if_finite(model, [descent], torch.tensor(2.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_what_is_not_finite_is_named(dtype: torch.dtype) -> None:
    model: Any = tiny_network(0, **SIZES).to(dtype)
    assert weights_not_finite(model) == []
    for value in (math.nan, -math.inf):
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight[1, 2] = value
        assert weights_not_finite(model) == ["model.layers.0.mlp.up_proj.weight"]
    model.requires_grad_(False)
    assert weights_not_finite(model) == [], "it is not trained"


@pytest.mark.parametrize("rank", [0, 2])
def test_broken_weights_are_not_trained(tmp_path: Path, rank: int) -> None:
    file = tiny_model(tmp_path / "model", **SIZES) / "model.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"][0] = math.nan
    save_file(weights, file, metadata={"format": "pt"})
    part = GrpoConfig.of(lora_rank=rank).adapter
    with pytest.raises(
        ModelError, match=r"1 of its tensors .*'model.norm.weight'.*earlier checkpoint"
    ):
        TrainedPolicy.load(str(file.parent), part, dtype="float32", device="cpu", seed=0)


def test_a_run_resumed_for_a_step_that_cannot_be_taken_ends_well_where_earlier_ones_were(
    learner: Learner, codec: ChatTemplateCodec, tmp_path: Path
) -> None:
    log = MetricsLog(tmp_path / METRICS_FILE)
    for row in ({"step": 0, "stepped": 1.0}, {"step": 1, "stepped": 0.0}):
        log.append(row)
    log.sync()
    learner.skipped.count(stepped=False)
    assert Keeper(tmp_path, GrpoConfig.of(seed=3), learner).end().is_dir()

    def tuned(steps: int, run: Path) -> None:
        # begins with the good row
        config = SftConfig(steps=steps, batch_size=1, warmup_steps=0, cooldown=0.0, seed=1)
        model = broken_at(tiny_network(1, **UNTIED), codec)
        train_sft(model, codec, [GOOD, BAD], config, checkpoints=Checkpoints(run, keep=2, every=1))

    tuned(1, tmp_path / "sft")
    tuned(2, tmp_path / "sft")
