"""Families of tasks with a graph, rewards, an algorithm and a teacher of their own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.errors import ConfigError
from hrm_agent.rewards import Reward, Rubric
from hrm_agent.store import open_store
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.config.parts import FamilyPart
from hrm_agent.training.grpo import train
from hrm_agent.training.metrics import read_metrics

LCM, WORDS = "reasoning_gym:lcm", "word_problems"
MIX = {
    "tasks": f"mix:1*{LCM},1*{WORDS}",
    "steps": 1,
    "prompts_per_step": 4,
    "group_size": 2,
    "oversampling": 2.0,
    "cooldown": 0,
    "concurrency": 16,
}


def half(text: str) -> float:
    del text
    return 0.5


rubric = Rubric([Reward(half, weight=1.0)])


def family(**settings: Any) -> FamilyPart:
    return FamilyPart(name=LCM, **settings)


def test_each_family_runs_its_graph_and_is_scored_and_selected_its_way(tmp_path: Path) -> None:
    own = family(
        graph="reasoning",
        context={"max_subgoals": 1},
        rewards=f"{Path(__file__)}:rubric",
        algorithm="grpo",
        teacher="builtin:trained",
    )
    config = GrpoConfig.of(**MIX, families=(own,), teacher="builtin:cold-start")
    asyncio.run(train(config, tmp_path / "run"))
    with open_store(tmp_path / "run", read_only=True) as store:
        found = [store.journal.with_calls(each) for each in store.journal.headers()]
    by_family = {
        name: [each for each in found if each.task.family == name] for name in (LCM, WORDS)
    }
    assert {each.graph for each in by_family[LCM]} == {"reasoning"}
    assert {each.graph for each in by_family[WORDS]} == {"tool_loop"}
    assert [len(by_family[name]) for name in (LCM, WORDS)] == [2 * 2, 2 * 4], "grpo, and grpo-roc"
    assert all(set(each.rewards) >= {"half"} for each in by_family[LCM])
    assert all(set(each.rewards) == {"correct"} for each in by_family[WORDS])
    (row,) = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert set(row["families"]) == {LCM, WORDS} and row["stepped"]


@pytest.mark.parametrize(
    ("settings", "other", "said"),
    [
        ({}, {"tasks": WORDS}, f"families names '{LCM}', but no task of this training is of it"),
        ({"algorithm": "grpo-roc"}, {"credit": "forks", "algorithm": "grpo"}, "credit = forks"),
    ],
)
def test_what_contradicts_the_training_is_refused(
    settings: dict[str, Any], other: dict[str, Any], said: str, tmp_path: Path
) -> None:
    keys = {**MIX, **other}
    if keys.get("algorithm") == "grpo":
        del keys["oversampling"]
    with pytest.raises(Exception, match=said) as raised:
        asyncio.run(train(GrpoConfig.of(**keys, families=(family(**settings),)), tmp_path / "run"))
    assert type(raised.value).__module__ == "hrm_agent.errors"


def test_a_family_is_named_once_and_not_with_a_record() -> None:
    with pytest.raises(ConfigError, match=f"families has '{LCM}' twice"):
        GrpoConfig.of(families=(family(), family()))
    with pytest.raises(ConfigError, match="families does not go with --from"):
        GrpoConfig.of(families=(family(),), source=("runs/one",))
