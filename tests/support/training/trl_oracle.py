"""TRL's GRPOTrainer as an oracle: fixed trajectories, and a trainer whose rollouts they are.

The rollouts reach TRL like those of a user (`rollout_func` with `env_mask`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from hrm_agent.training.select.roc import select
from hrm_agent.trajectory import Call, LogprobKind, Overlay, Sampling, Trajectory
from tests.support.training.builders import VOCABULARY, sampled_call, tiny_model, trajectory

if TYPE_CHECKING:
    from trl.trainer.grpo_trainer import GRPOTrainer

REWARDS = (1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0)
GENERATIONS = 4
TRL_EPS = 1e-4


def tokenizer() -> PreTrainedTokenizerFast:
    words = {"<pad>": 0, "<bos>": 1, "<eos>": 2} | {f"w{i}": i for i in range(3, VOCABULARY)}
    model = Tokenizer(WordLevel(words, unk_token="<pad>"))
    model.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )


def rollouts(temperature: float = 1.0) -> list[Trajectory]:
    """Two groups of four: a prompt and a sampled turn, then a tool response and a second sampled
    turn.
    """
    rng = random.Random(0)
    model = tiny_model()
    return [recorded(i, reward, rng, model, temperature) for i, reward in enumerate(REWARDS)]


def recorded(
    index: int, reward: float, rng: random.Random, model: Any, temperature: float
) -> Trajectory:
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
        masked = tuple(
            p if sampled else 0.0 for p, sampled in zip(logprobs, call.mask, strict=True)
        )
        said = {
            "logprobs": masked,
            "logprob_kind": kind,
            "sampling": Sampling(temperature=temperature),
        }
        return call.model_copy(update=said)

    calls = (shifted(first, 0), shifted(second, len(first.token_ids)))
    group = f"group-{index // GENERATIONS}"
    return trajectory(index, reward, calls=calls, group_id=group, sample_index=index % GENERATIONS)


def trl_inputs(trajectories: list[Trajectory], trainer: GRPOTrainer) -> dict[str, Any]:
    """Inputs that TRL computes from the rollouts, with the recorded log-probs as the old ones."""
    rows = [{"prompt": f"w{3 + i // GENERATIONS}", "index": i} for i in range(len(trajectories))]
    trainer.model.train()
    inputs = trainer._generate_and_score_completions(rows)
    old = torch.zeros(inputs["completion_ids"].shape)
    for row, whole in zip(old, trajectories, strict=True):
        logprobs = recorded_logprobs(*whole.calls)
        row[: len(logprobs)] = torch.tensor(logprobs)
    return {**inputs, "old_per_token_logps": old}


def recorded_logprobs(first: Call, second: Call) -> list[float]:
    """Recorded log-probs of all tokens after the prompt."""
    sampled = [p for p, s in zip(first.logprobs, first.mask, strict=True) if s]
    return [*sampled, *second.logprobs]


def kept(trajectories: list[Trajectory]) -> list[Overlay]:
    """Overlays of all trajectories, by group, without advantages."""
    groups = (trajectories[i : i + GENERATIONS] for i in range(0, len(trajectories), GENERATIONS))
    return [overlay for group in groups for overlay in select(group, GENERATIONS, "grpo", seed=0)]


def trainer_of(recorded: list[Trajectory], temperature: float, folder: Path) -> GRPOTrainer:
    """Trainer whose rollouts are the recorded ones."""

    def rollout_func(prompts: list[Any], trainer: Any = None) -> dict[str, list[Any]]:
        del prompts, trainer
        fields: dict[str, list[Any]] = {
            "prompt_ids": [],
            "completion_ids": [],
            "logprobs": [],
            "env_mask": [],
        }
        for first, second in (whole.calls for whole in recorded):
            turn = [t for t, sampled in zip(first.token_ids, first.mask, strict=True) if sampled]
            fields["prompt_ids"].append(
                [t for t, s in zip(first.token_ids, first.mask, strict=True) if not s]
            )
            fields["completion_ids"].append([*turn, *second.token_ids])
            fields["logprobs"].append(recorded_logprobs(first, second))
            fields["env_mask"].append([1] * len(turn) + [int(s) for s in second.mask])
        return fields

    def reward(completions: list[Any], **_: Any) -> list[float]:
        return list(REWARDS[: len(completions)])

    loss: dict[str, Any] = {
        "loss_type": "dapo",
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "beta": 0.0,
        "scale_rewards": "group",
        "temperature": temperature,
    }
    return trainer_with(rollout_func, reward, folder, **loss)


def trainer_with(
    rollout_func: Callable[..., dict[str, Any]],
    reward: Callable[..., list[float]],
    folder: Path,
    **loss: Any,
) -> GRPOTrainer:
    """Trainer that takes its rollouts and their rewards from these functions."""
    # here, not above: they take a second, and every process of tests imports this file
    from datasets import Dataset
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    config = GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        report_to=[],
        per_device_train_batch_size=len(REWARDS),
        num_generations=GENERATIONS,
        max_completion_length=32,
        gradient_checkpointing=False,
        **loss,
    )
    trainer = GRPOTrainer(
        model=tiny_model(),
        args=config,
        reward_funcs=reward,
        rollout_func=rollout_func,
        processing_class=tokenizer(),
        train_dataset=Dataset.from_list([{"prompt": "w3"}, {"prompt": "w4"}]),
    )
    # set by its training loop, which does not run here
    trainer.current_gradient_accumulation_steps = 1
    return trainer
