"""A graph that plans in JSON, reads it strictly and raises on what is no plan, learns to write
plans that parse.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from statistics import fmean

import pytest

from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.training.checkpoints import save_policy
from hrm_agent.training.config.commands import GrpoConfig, SftConfig
from hrm_agent.training.config.parts import AdapterPart
from hrm_agent.training.grpo import train
from hrm_agent.training.metrics import read_metrics
from hrm_agent.training.sft import read_chats, train_sft
from hrm_agent.training.update.trained_policy import TrainedPolicy
from tests.support.graphs import planning_agent

PLANNER = "tests.support.graphs.planning_agent"


@pytest.mark.slow
def test_the_share_of_plans_that_parse_rises(tmp_path: Path) -> None:
    start = TrainedPolicy.load(
        "builtin:cold-start", AdapterPart(), dtype="float32", device="cpu", seed=0
    )
    codec = ChatTemplateCodec(start.tokenizer)
    lessons = "".join(json.dumps(planning_agent.lesson(i)) + "\n" for i in range(900))
    (tmp_path / "lessons.jsonl").write_text(lessons)
    train_sft(
        start.model,
        codec,
        read_chats(tmp_path / "lessons.jsonl"),
        SftConfig(steps=50, batch_size=32),
    )
    save_policy(start.model, start.tokenizer, tmp_path / "start", "# start")
    config = GrpoConfig.of(
        policy=str(tmp_path / "start"),
        graph=f"{PLANNER}:graph",
        tasks=f"{PLANNER}:sums",
        algorithm="grpo",
        prompts_per_step=6,
        group_size=8,
        steps=7,
        learning_rate=3e-4,
    )
    asyncio.run(train(config, tmp_path / "run"))
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    parsed = [1 - row["rollout/failed"] for row in rows]
    assert all(row["rollout/lost"] == row["rollout/raised"] == 0 for row in rows)
    assert rows[0]["rollout/failed_by_policy"] == rows[0]["rollout/failed"] * 48 > 0
    assert fmean(parsed[-2:]) > parsed[0] + 0.1, parsed
