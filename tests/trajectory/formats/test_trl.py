"""TRL's trainer takes an exported file for what a `rollout_func` returns: tokens, masks, log-probs and rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from hrm_agent.trajectory.formats import export_to
from hrm_agent.trajectory.formats.trl import rollout_columns
from tests.support.training.builders import tiny_model
from tests.support.training.trl_oracle import GENERATIONS, REWARDS, rollouts, tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")


def test_trl_learns_what_is_on_record(tmp_path: Path) -> None:
    recorded = rollouts()
    export_to(tmp_path / "x.trl", recorded, "trl")
    columns = rollout_columns(tmp_path / "x.trl")

    def reward_of_the_file(reward: list[float], **_: Any) -> list[float]:
        return reward

    config = GRPOConfig(
        output_dir=str(tmp_path),
        use_cpu=True,
        bf16=False,
        report_to=[],
        per_device_train_batch_size=len(REWARDS),
        num_generations=GENERATIONS,
        max_completion_length=32,
        gradient_checkpointing=False,
    )
    trainer = GRPOTrainer(
        model=tiny_model(),
        args=config,
        reward_funcs=reward_of_the_file,
        rollout_func=lambda prompts, trainer: columns,
        processing_class=tokenizer(),
        train_dataset=Dataset.from_list([{"prompt": "w3"}, {"prompt": "w4"}]),
    )
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    inputs = trainer._generate_and_score_completions(
        [{"prompt": f"w{3 + i // GENERATIONS}"} for i in range(len(recorded))]
    )
    for i, whole in enumerate(recorded):
        first, second = whole.calls
        prompt = [token for token, sampled in zip(first.token_ids, first.mask, strict=True) if not sampled]
        assert inputs["prompt_ids"][i][inputs["prompt_mask"][i].bool()].tolist() == prompt
        kept = inputs["completion_mask"][i].bool()
        completion = [*first.token_ids[len(prompt) :], *second.token_ids]
        assert inputs["completion_ids"][i][kept].tolist() == completion
        mask = [*(sampled for sampled in first.mask if sampled), *second.mask]
        assert inputs["tool_mask"][i][kept].bool().tolist() == mask
    advantages = inputs["advantages"].tolist()
    assert [value > 0 for value in advantages] == [reward > 0 for reward in REWARDS]
