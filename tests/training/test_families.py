"""Families of tasks with a graph, rewards, an algorithm and a teacher of their own."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.cli.main import main
from hrm_agent.errors import ConfigError
from hrm_agent.rewards import Reward, Rubric
from hrm_agent.store import open_store
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.config.parts import FamilyPart
from hrm_agent.training.grpo import train
from hrm_agent.training.metrics import read_metrics
from hrm_agent.training.rollout.source import refuse_unknown_families

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


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_each_family_runs_its_graph_and_is_scored_and_selected_its_way(
    processes: int, tmp_path: Path
) -> None:
    own = family(
        graph="reasoning",
        context={"max_subgoals": 1},
        rewards=f"{Path(__file__)}:rubric",
        algorithm="grpo",
        teacher="builtin:trained",
    )
    config = GrpoConfig.of(
        **MIX, families=(own,), teacher="builtin:cold-start", processes=processes
    )
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


def test_another_graph_gets_its_own_options_alone() -> None:
    config = GrpoConfig.of(
        graph="reasoning",
        context={"max_subgoals": 2},
        answer_path="answer",
        families=(family(graph="tool_loop"), FamilyPart(name="b", context={"max_rounds": 1})),
    )
    other, same = config.of_family(LCM), config.of_family("b")
    assert (other.graph, other.context, other.answer_path) == ("tool_loop", {}, "")
    assert (same.context, same.answer_path) == ({"max_subgoals": 2, "max_rounds": 1}, "answer")
    assert config.of_family("c") is config


def test_options_of_an_algorithm_that_a_family_alone_has_act() -> None:
    own = family(algorithm="grpo-roc")
    config = GrpoConfig.of(algorithm="grpo", oversampling=3.0, families=(own,))
    assert (config.samples, config.of_family(LCM).samples) == (8, 24)
    with pytest.raises(ConfigError, match="oversampling has no effect here"):
        GrpoConfig.of(algorithm="grpo", oversampling=3.0)


def test_a_short_run_need_not_draw_every_family(tmp_path: Path) -> None:
    config = GrpoConfig.of(
        tasks=f"mix:20*{WORDS},1*{LCM}", steps=1, prompts_per_step=1, families=(family(),)
    )
    refuse_unknown_families(config, tmp_path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('name = "f"\ngrpah = "x"', r"no key 'families\.0\.grpah'.*Did you mean 'graph'\?"),
        ('name = "f"\ngroup_size = 2', r"no key 'families\.0\.group_size'.*Keys: name, graph"),
        ('name = "f"\nalgorithm = "best"', r"algorithm .*not 'best'.*Selection algorithm"),
        ('name = "f"\ncontext = { api_key = "k" }', "named like a secret"),
        (f'name = "{LCM}x"', f"families names '{LCM}x', but no task .* Did you mean '{LCM}'"),
        (f'name = "{LCM}"\ncontext = {{ nothing = 1 }}', "has no option 'nothing'"),
    ],
)
def test_a_wrong_table_leaves_no_folder(
    line: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.toml"
    tasks = f'tasks = "mix:1*{LCM},1*{WORDS}"'
    file.write_text(f'command = "train rl"\n{tasks}\nsteps = 1\n\n[[families]]\n{line}\n')
    out = tmp_path / "run"
    assert main(["train", "rl", "--config", str(file), "--out", str(out)]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert re.search(said, told), told
    assert not out.exists()
