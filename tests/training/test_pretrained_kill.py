"""`kill -9` of a training of a pretrained model, in a rollout, after an update and in a checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hrm_agent.training.config.commands import GrpoConfig
from tests.support.training.killed_training import (
    assert_same_weights,
    finished_run,
    killed_runs,
    sampled_tokens,
)

REWARD = "def brevity(text):\n    return 1 / (1 + len(text))\n"


@pytest.mark.slow
def test_three_kills_lead_to_the_same_weights(real_model: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(REWARD)
    config = GrpoConfig.of(
        policy=real_model,
        tasks="reasoning_gym:basic_arithmetic",
        rewards=f"{tmp_path / 'mine.py'}:brevity",
        context={"tool_format": "fenced", "max_turns": 2},
        max_tokens=12,
        truncated="keep_reward",
        steps=2,
        prompts_per_step=2,
        group_size=4,
        algorithm="grpo",
        forward="tree",
        learning_rate=1e-4,
        checkpoints=1,
    )
    whole = finished_run(config, tmp_path, "whole")
    shutil.rmtree(whole / "checkpoints")  # 1.6 GB
    for event, count in (("rollout", 5), ("step", 1), ("sync", 3)):
        killed_runs(config, tmp_path, {"killed": (event, count)})
    killed = finished_run(config, tmp_path, "killed")
    assert sampled_tokens(killed) == sampled_tokens(whole)
    assert_same_weights(killed, whole, atol=1e-4)
