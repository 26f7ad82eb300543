"""Training an adapter, in other types and with layers computed again: what changes, what is kept,
what is refused.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import nn

from hrm_agent.errors import ConfigError, ModelError
from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.models.engine import GenerationRequest
from hrm_agent.models.loading import load_weights
from hrm_agent.models.loading.load_weights import load_for_answers
from hrm_agent.models.loading.policy_loader import load_policy, model_folder
from hrm_agent.models.model_string import parse_model
from hrm_agent.training.checkpoints import Checkpoints
from hrm_agent.training.config.commands import GrpoConfig, SftConfig
from hrm_agent.training.config.parts import AdapterPart
from hrm_agent.training.grpo import train
from hrm_agent.training.metrics import read_metrics
from hrm_agent.training.sft import train_sft
from hrm_agent.training.small_policy.traces import demonstrations
from hrm_agent.training.update.batch import ForwardName, MicroBatch
from hrm_agent.training.update.learner import Learner
from hrm_agent.training.update.logprobs import token_logprobs
from hrm_agent.training.update.trained_policy import TrainedPolicy
from hrm_agent.trajectory import Sampling

MODEL = "builtin:cold-start"
IN_4_BITS = f"{MODEL}?load=nf4"
ADAPTER_FILES = {"README.md", "adapter_config.json", "adapter_model.safetensors", "base.json"}


def learner(**keys: Any) -> Learner:
    return Learner(
        GrpoConfig.of(**{"lora_rank": 4, "learning_rate": 5e-3, "seed": 3, **keys}), Accelerator()
    )


def batch_of(engine: Any, weight: float = 1.0) -> MicroBatch:
    """A row of tokens that the engine has sampled, with its log-probs."""
    prompt = tuple(range(3, 20))
    done = engine.submit(
        GenerationRequest(prompt, Sampling(temperature=1.0, max_tokens=24, seed=4))
    ).result(60)
    ids, first, count = [*prompt, *done.token_ids], len(prompt), len(done.token_ids)
    ones, zeros = torch.ones(count), torch.zeros(count, dtype=torch.long)
    return MicroBatch(
        token_ids_N=torch.tensor(ids),
        positions_N=torch.arange(len(ids)),
        parents_N=torch.arange(len(ids)) - 1,
        loss_indices_K=torch.arange(first, len(ids)),
        weights_K=weight * ones,
        old_logprobs_K=torch.tensor(done.logprobs),
        temperatures_K=ones,
        old_temperatures_K=ones,
        versions_K=zeros,
        sequences_K=zeros,
        lengths_K=count * ones,
    )


def weights_of(model: nn.Module, *, trained: bool) -> dict[str, torch.Tensor]:
    return {
        name: each.detach().clone()
        for name, each in model.named_parameters()
        if each.requires_grad == trained
    }


@pytest.mark.parametrize("forward", ["packed", "tree"])
def test_an_adapter_is_held_to_its_start_however_rows_are_forwarded(forward: ForwardName) -> None:
    padded, other = learner(kl_coef=0.1), learner(kl_coef=0.1, forward=forward)
    batch = batch_of(padded.engine)
    for _ in range(3):
        rows = [padded.update([batch], 5e-3), other.update([replace(batch, forward=forward)], 5e-3)]
        assert rows[0]["kl_reference"] == pytest.approx(rows[1]["kl_reference"], rel=1e-3, abs=1e-7)
    assert rows[0]["kl_reference"] > 0


@pytest.mark.parametrize("policy", [MODEL, IN_4_BITS])
def test_the_adapter_alone_changes_and_the_engine_samples_with_it(
    policy: str, tmp_path: Path
) -> None:
    ours = learner(policy=policy)
    frozen, before = weights_of(ours.model, trained=False), weights_of(ours.model, trained=True)
    assert len(before) == 28 and all(
        ".lora_" in name and each.dtype == torch.float32 for name, each in before.items()
    )
    assert sum(len(group["params"]) for group in ours.optimizer.param_groups) == len(before)
    rows = [ours.update([batch_of(ours.engine)], 5e-3) for _ in range(4)]
    assert all(row["stepped"] and row["engine_difference"] < 2e-6 for row in rows), (
        "before and after it has learnt"
    )
    assert rows[-1]["grad_norm"] > 0 and ours.version == 4
    after = weights_of(ours.model, trained=True)
    assert all(not torch.equal(after[name], each) for name, each in before.items())
    assert all(
        torch.equal(each, frozen[name])
        for name, each in weights_of(ours.model, trained=False).items()
    )

    ours.save(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == ADAPTER_FILES
    kept = load_file(tmp_path / "adapter_model.safetensors")
    assert {name.rpartition("base_model.model.")[2] for name in kept} == {
        name.replace(".default", "") for name in after
    }
    served: Any = load_policy(str(tmp_path))
    assert served.capabilities().quantized == ("nf4" if policy == IN_4_BITS else None)
    again, sampled = batch_of(served), batch_of(ours.engine)
    assert torch.equal(again.token_ids_N, sampled.token_ids_N)
    torch.testing.assert_close(again.old_logprobs_K, sampled.old_logprobs_K, rtol=0, atol=1e-5)
    ours.engine.close()


@pytest.mark.parametrize("policy", [MODEL, IN_4_BITS])
def test_the_reference_is_the_model_without_its_adapter_and_no_second_one(policy: str) -> None:
    ours = learner(policy=policy, kl_coef=0.1, lora_dropout=0.2)
    batch = batch_of(ours.engine)
    batch = batch.to(ours.accelerator.device)
    options = replace(
        parse_model(policy).options, dtype="float32", device=str(ours.accelerator.device)
    )
    original, _ = load_for_answers(model_folder(MODEL), options)
    first = ours.update([batch], 0.02)
    assert first["kl_reference"] == pytest.approx(0.0, abs=1e-4)
    assert ours.update([batch], 0.02)["kl_reference"] > 1e-3
    reference = ours.reference
    assert reference is not None and not list(reference.parameters())
    ours.model.train()
    with torch.no_grad():
        expected, found = token_logprobs(original, batch), token_logprobs(reference, batch)
        own = token_logprobs(ours.model.eval(), batch)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert (own - expected).abs().max() > 1e-2, "and the adapter is on again"
    assert len(weights_of(ours.model, trained=True)) == 28
    ours.engine.close()


@pytest.mark.parametrize("keys", [{"lora_rank": 0}, {}, {"policy": IN_4_BITS, "lora_dropout": 0.3}])
def test_layers_that_are_computed_again_have_the_same_gradients(keys: dict[str, Any]) -> None:
    after: list[dict[str, torch.Tensor]] = []
    for again in (False, True):
        ours = learner(gradient_checkpointing=again, **keys)
        batch = batch_of(ours.engine)
        layer, calls = ours.model.model.layers[0].mlp, list[bool]()
        layer.register_forward_pre_hook(
            lambda *_, calls=calls: calls.append(torch.is_grad_enabled())
        )
        ours.update([batch], 1e-3)
        ours.update([batch], 1e-3)
        assert calls == [True] * (4 if again else 2)
        after.append(weights_of(ours.model, trained=True))
        ours.engine.close()
    assert after[0].keys() == after[1].keys()
    assert all(torch.equal(after[0][name], after[1][name]) for name in after[0])


@pytest.mark.parametrize(
    ("keys", "types"),
    [
        ({"lora_rank": 0}, {torch.bfloat16}),
        ({"lora_rank": 0, "optimizer": "adamw8bit"}, {torch.bfloat16}),
        ({}, {torch.bfloat16, torch.float32}),
        ({"policy": IN_4_BITS}, {torch.uint8, torch.bfloat16, torch.float32}),
    ],
)
def test_in_bfloat16_engine_and_trainer_have_the_same_weights_and_learn(
    keys: dict[str, Any], types: set[torch.dtype], tmp_path: Path
) -> None:
    ours = learner(dtype="bfloat16", **keys)
    assert {each.dtype for each in ours.model.parameters()} == types
    batch = batch_of(ours.engine).to(ours.accelerator.device)
    rates = [2e-4] * 6
    rows = [ours.update([batch], rate) for rate in rates]
    assert rows[0]["engine_difference"] < 0.03, "as far as rounding goes"
    with torch.no_grad():
        learnt = token_logprobs(ours.model.eval(), batch).mean() - batch.old_logprobs_K.mean()
    assert learnt > 0.02
    ours.write(tmp_path)
    other = learner(dtype="bfloat16", **keys)
    other.read(tmp_path, 6)
    for each in (ours, other):
        each.update([batch], 2e-4)
    mine, theirs = weights_of(ours.model, trained=True), weights_of(other.model, trained=True)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine), "masters and all"
    served: Any = load_policy(str(tmp_path))
    assert served.capabilities().dtype == "bfloat16"
    ours.engine.close(), other.engine.close()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"lora_targets": ("q_projection",)},
            r"takes no adapter on q_projection.*lora_targets of this model: .*q_proj",
        ),
        (
            {"policy": IN_4_BITS, "lora_rank": 0},
            "quantized weights have no gradient.*--lora-rank 8",
        ),
        ({"policy": f"{MODEL}?load=int8"}, "as they are stored or in 4 bits"),
    ],
)
def test_what_cannot_be_trained_is_said(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        learner(**keys)


def test_a_model_without_linear_layers_takes_no_adapter() -> None:
    policy = TrainedPolicy.load(MODEL, AdapterPart(), dtype="float32", device="cpu", seed=0)
    for layer in policy.model.model.layers:
        for part in (layer.self_attn, layer.mlp):
            for name, inner in list(part.named_children()):
                if isinstance(inner, nn.Linear):
                    setattr(part, name, nn.Identity())
    from hrm_agent.training.update.adapters import Adapter

    with pytest.raises(ModelError, match="takes no adapter on all-linear"):
        Adapter.put_into(policy.model, AdapterPart(lora_rank=4), base=MODEL, folder=MODEL, seed=0)
    policy.model.supports_gradient_checkpointing = False
    with pytest.raises(ModelError, match="Leave gradient_checkpointing out"):
        policy.recompute_activations()


def test_peft_is_asked_for_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = load_weights.find_spec
    monkeypatch.setattr(
        load_weights, "find_spec", lambda name: None if name == "peft" else found(name)
    )
    with pytest.raises(ModelError, match=r"lora_rank = 4 needs peft.*pip install .*\[adapters\]"):
        learner()


@pytest.mark.parametrize(
    "keys", [{"lora_alpha": 8.0}, {"lora_dropout": 0.1}, {"lora_targets": ("q_proj",)}]
)
def test_a_key_of_the_adapter_without_one_is_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"there is no adapter.*Set lora_rank"):
        GrpoConfig.of(**keys)
    assert GrpoConfig.of(lora_rank=4, **keys).adapter.lora_rank == 4
    with pytest.raises(ConfigError, match="names no layer"):
        GrpoConfig.of(lora_rank=4, lora_targets=())


def test_the_adapter_is_as_wide_and_as_strong_as_was_asked() -> None:
    ours = learner(lora_rank=2, lora_alpha=6.0, lora_targets=("q_proj", "v_proj"))
    names = set(weights_of(ours.model, trained=True))
    assert len(names) == 8 and all("q_proj" in name or "v_proj" in name for name in names)
    assert {
        layer.scaling["default"]
        for layer in ours.model.modules()
        if hasattr(layer, "scaling") and hasattr(layer, "lora_A")
    } == {3.0}
    again, other = learner(lora_rank=2), learner(lora_rank=2, seed=4)
    first, second, third = (
        weights_of(each.model, trained=True) for each in (learner(lora_rank=2), again, other)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], third[name]) for name in first), "the seed is the run's"


def test_another_adapter_is_not_read(tmp_path: Path) -> None:
    learner(lora_rank=2).save(tmp_path)
    with pytest.raises(ModelError, match="does not fit this one"):
        learner(lora_rank=4)._policy.read(tmp_path)


@pytest.mark.whole
def test_a_run_keeps_adapters_only_its_best_one_too(tmp_path: Path) -> None:
    config = GrpoConfig.of(
        steps=1,
        prompts_per_step=4,
        group_size=4,
        algorithm="grpo",
        seed=5,
        lora_rank=4,
        eval_every=1,
        eval_problems=2,
        context={"max_turns": 4, "max_tokens": 96},
    )
    folder = tmp_path / "run"
    asyncio.run(train(config, folder))
    for where in (folder / "model", folder / "best"):
        assert {file.name for file in where.iterdir()} == ADAPTER_FILES | {"manifest.json"}
    (checkpoint,) = (folder / "checkpoints").iterdir()
    assert "model.safetensors" not in {file.name for file in checkpoint.iterdir()}
    (row,) = read_metrics(folder / "metrics.jsonl")
    assert row["engine_difference"] < 1e-6
    whole = sum(file.stat().st_size for file in Path(model_folder(MODEL)).iterdir())
    assert sum(file.stat().st_size for file in (folder / "model").iterdir()) < whole / 10


def test_fine_tuning_of_an_adapter_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    lessons = list(demonstrations("train", 0, 12))

    def tuned(steps: int, checkpoints: Checkpoints | None) -> tuple[Any, list[dict[str, float]]]:
        part = AdapterPart(lora_rank=4)
        policy = TrainedPolicy.load(IN_4_BITS, part, dtype="float32", device="cpu", seed=1)
        config = SftConfig(
            steps=steps, batch_size=4, learning_rate=0.01, warmup_steps=0, cooldown=0.0, average=0.5
        )
        codec = ChatTemplateCodec(policy.tokenizer)
        rows = train_sft(
            policy.model, codec, lessons, config, checkpoints=checkpoints, adapter=policy.adapter
        )
        return policy, rows

    undisturbed, rows = tuned(4, None)
    kept = Checkpoints(tmp_path, every=1)
    tuned(2, kept)
    resumed, later = tuned(4, kept)
    assert len(later) == 2 and len(rows) == 4
    one, other = (weights_of(each.model, trained=True) for each in (undisturbed, resumed))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert any(each.abs().max() > 0 for name, each in one.items() if "lora_B" in name)
    assert not list(kept.folder.rglob("model.safetensors"))
