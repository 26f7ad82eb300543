"""Loss, gradient and advantages equal those of TRL's GRPOTrainer on the same fixed trajectories, at any temperature.

The rollouts reach TRL the way a user's would (`rollout_func` with `env_mask`). Its old log-probs are then set to those
of the record, which differ from the model's, so that both clip bounds are active.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from hrm_agent.training.advantages import group_advantages
from hrm_agent.training.batch import build_batches
from hrm_agent.training.logprobs import token_logprobs
from hrm_agent.training.objectives import clipped_surrogate
from hrm_agent.training.roc import select
from hrm_agent.trajectory import LogprobKind, Sampling, Trajectory
from tests.support.training.builders import VOCABULARY, sampled_call, tiny_model, trajectory

REWARDS = (1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0)
GENERATIONS = 4
TRL_EPS = 1e-4


def tokenizer() -> PreTrainedTokenizerFast:
    words = {"<pad>": 0, "<bos>": 1, "<eos>": 2} | {f"w{i}": i for i in range(3, VOCABULARY)}
    model = Tokenizer(WordLevel(words, unk_token="<pad>"))
    model.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=model, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>")


def rollouts(temperature: float = 1.0) -> list[Trajectory]:
    """Two groups of four: a prompt and a sampled turn, then a tool response and a second sampled turn."""
    rng = random.Random(0)
    model = tiny_model()
    return [recorded(i, reward, rng, model, temperature) for i, reward in enumerate(REWARDS)]


def recorded(index: int, reward: float, rng: random.Random, model: Any, temperature: float) -> Trajectory:
    def tokens(least: int, most: int) -> list[int]:
        return [rng.randrange(3, VOCABULARY) for _ in range(rng.randint(least, most))]

    prompt, turn, response, answer = tokens(3, 6), tokens(2, 8), tokens(2, 5), [*tokens(1, 6), 2]
    name = f"call-{index}"
    first = sampled_call(name, [*prompt, *turn], len(prompt))
    second = sampled_call(f"{name}b", [*response, *answer], len(response), name)
    ids = torch.tensor([*first.token_ids, *second.token_ids])
    with torch.no_grad():
        logprobs = (model(input_ids=ids[None]).logits[0] / temperature).log_softmax(-1)
    own = [0.0, *logprobs[:-1].gather(-1, ids[1:, None])[:, 0].tolist()]
    kind = LogprobKind.RAW if temperature == 1 else LogprobKind.TEMPERED

    def shifted(call: Any, start: int) -> Any:
        logprobs = [p + rng.uniform(-0.5, 0.5) for p in own[start : start + len(call.mask)]]
        masked = tuple(p if sampled else 0.0 for p, sampled in zip(logprobs, call.mask, strict=True))
        said = {"logprobs": masked, "logprob_kind": kind, "sampling": Sampling(temperature=temperature)}
        return call.model_copy(update=said)

    calls = (shifted(first, 0), shifted(second, len(first.token_ids)))
    group = f"group-{index // GENERATIONS}"
    return trajectory(index, reward, calls=calls, group_id=group, sample_index=index % GENERATIONS)


def trl_inputs(trajectories: list[Trajectory], trainer: GRPOTrainer) -> dict[str, Any]:
    """What TRL makes of the rollouts, with the record's log-probs as the old ones."""
    rows = [{"prompt": f"w{3 + i // GENERATIONS}", "index": i} for i in range(len(trajectories))]
    trainer.model.train()
    inputs = trainer._generate_and_score_completions(rows)
    old = torch.zeros(inputs["completion_ids"].shape)
    for row, whole in zip(old, trajectories, strict=True):
        logprobs = [*(p for p, s in zip(whole.calls[0].logprobs, whole.calls[0].mask, strict=True) if s)]
        logprobs += whole.calls[1].logprobs
        row[: len(logprobs)] = torch.tensor(logprobs)
    return {**inputs, "old_per_token_logps": old}


pytestmark = pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")


@pytest.fixture(scope="module", params=[0.5, 1.0, 2.0])
def temperature(request: pytest.FixtureRequest) -> float:
    return request.param


@pytest.fixture(scope="module")
def recorded_rollouts(temperature: float) -> list[Trajectory]:
    return rollouts(temperature)


@pytest.fixture(scope="module")
def trainer(
    recorded_rollouts: list[Trajectory], temperature: float, tmp_path_factory: pytest.TempPathFactory
) -> GRPOTrainer:
    def rollout_func(prompts: list[Any], trainer: Any = None) -> dict[str, list[Any]]:
        del prompts, trainer
        fields: dict[str, list[Any]] = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "env_mask": []}
        for first, second in (whole.calls for whole in recorded_rollouts):
            turn = [t for t, sampled in zip(first.token_ids, first.mask, strict=True) if sampled]
            fields["prompt_ids"].append([t for t, s in zip(first.token_ids, first.mask, strict=True) if not s])
            fields["completion_ids"].append([*turn, *second.token_ids])
            fields["logprobs"].append([0.0] * (len(turn) + len(second.token_ids)))
            fields["env_mask"].append([1] * len(turn) + [int(s) for s in second.mask])
        return fields

    def reward(completions: list[Any], **_: Any) -> list[float]:
        return list(REWARDS[: len(completions)])

    config = GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("trl")),
        use_cpu=True,
        bf16=False,
        report_to=[],
        per_device_train_batch_size=len(REWARDS),
        num_generations=GENERATIONS,
        max_completion_length=32,
        loss_type="dapo",
        epsilon=0.2,
        epsilon_high=0.28,
        beta=0.0,
        scale_rewards="group",
        temperature=temperature,
        gradient_checkpointing=False,
    )
    trainer = GRPOTrainer(
        model=tiny_model(),
        args=config,
        reward_funcs=reward,
        rollout_func=rollout_func,
        processing_class=tokenizer(),
        train_dataset=Dataset.from_list([{"prompt": "w3"}, {"prompt": "w4"}]),
    )
    trainer.current_gradient_accumulation_steps = 1  # set by its training loop, which does not run here
    return trainer


def test_advantages_loss_and_gradient_equal_trls(recorded_rollouts, trainer):
    inputs = trl_inputs(recorded_rollouts, trainer)
    judged = [
        overlay
        for start in range(0, len(REWARDS), GENERATIONS)
        for overlay in select(recorded_rollouts[start : start + GENERATIONS], GENERATIONS, "grpo", seed=0)
    ]
    overlays = group_advantages(judged, eps=TRL_EPS)
    assert torch.allclose(torch.tensor([o.advantage for o in overlays]), inputs["advantages"], atol=1e-6)

    trl_loss = trainer.compute_loss(trainer.model, inputs)
    trainer.model.zero_grad()
    trl_loss.backward()
    trl_gradients = {name.removeprefix("module."): p.grad for name, p in trainer.model.named_parameters()}

    model = tiny_model()
    batches = build_batches(recorded_rollouts, overlays, token_budget=64)
    total = sum(batch.trained_tokens for batch in batches)
    assert total == int(inputs["num_items_in_batch"])
    assert len(batches) > 1, "the case must split the batch"
    losses, clipped = [], torch.zeros(2)
    for batch in batches:
        loss, metrics = clipped_surrogate(token_logprobs(model, batch), batch.old_logprobs_K, batch.weights_K, total)
        loss.backward()
        losses.append(float(loss.detach()))
        clipped += torch.stack([metrics["clip_fraction_low"], metrics["clip_fraction_high"]])
    assert clipped.min() > 0, "both bounds must be active"
    assert sum(losses) == pytest.approx(float(trl_loss.detach()), abs=1e-6)
    logged = trainer._metrics["train"]
    assert clipped.tolist() == pytest.approx([logged[f"clip_ratio/{side}_mean"][-1] for side in ("low", "high")])
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, trl_gradients[name], atol=1e-6), name
