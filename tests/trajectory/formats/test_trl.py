"""TRL's trainer accepts an exported file as the result of a `rollout_func`: tokens, masks,
log-probs and rewards.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hrm_agent.trajectory.formats import export_to
from hrm_agent.trajectory.formats.trl import rollout_columns
from tests.support.training.trl_oracle import REWARDS, rollouts, trainer_with, trl_inputs

pytestmark = pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")


def test_trl_learns_what_is_on_record(tmp_path: Path) -> None:
    recorded = rollouts()
    export_to(tmp_path / "x.trl", recorded, "trl")
    columns = rollout_columns(tmp_path / "x.trl")

    def reward_of_the_file(reward: list[float], **_: Any) -> list[float]:
        return reward

    trainer = trainer_with(lambda prompts, trainer: columns, reward_of_the_file, tmp_path)
    inputs = trl_inputs(recorded, trainer)
    for i, whole in enumerate(recorded):
        first, second = whole.calls
        prompt = [
            token for token, sampled in zip(first.token_ids, first.mask, strict=True) if not sampled
        ]
        assert inputs["prompt_ids"][i][inputs["prompt_mask"][i].bool()].tolist() == prompt
        kept = inputs["completion_mask"][i].bool()
        completion = [*first.token_ids[len(prompt) :], *second.token_ids]
        assert inputs["completion_ids"][i][kept].tolist() == completion
        mask = [*(sampled for sampled in first.mask if sampled), *second.mask]
        assert inputs["tool_mask"][i][kept].bool().tolist() == mask
    advantages = inputs["advantages"].tolist()
    assert [value > 0 for value in advantages] == [reward > 0 for reward in REWARDS]
