"""Environments of the library verifiers as tasks: rows, rubric, tools, and those that are refused.

These run with the library itself too, where it is installed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import HrmError, TaskError
from hrm_agent.models import policy
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import EpisodeRunner
from hrm_agent.store import RunStore
from hrm_agent.training.rollout.rollout import group_episodes
from hrm_agent.training.tasks import Task, load_tasks
from hrm_agent.training.tasks.sources import changed_sources, keep_sources, read_sources
from hrm_agent.training.tasks.verifiers_environments import (
    EnvironmentRubric,
    _environment,
    environment_tools,
)
from tests.support.training import verifiers_v0

CODE = (Path(__file__).parents[2] / "support" / "training" / "sums_environment.py").read_text()
INSTALLED = importlib.util.find_spec("verifiers") is not None


@pytest.fixture(autouse=True)
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not INSTALLED:
        for name, module in verifiers_v0.modules().items():
            monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "sums_env", raising=False)
    (tmp_path / "sums_env.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    _environment.cache_clear()


def load(query: str = "", split: str = "train", count: int | None = None) -> list[Task]:
    return load_tasks(f"verifiers:someone/sums-env{query}", split=split, seed=0, count=count)


def rubric_of(task: Task) -> EnvironmentRubric:
    rubric = getattr(task.verify, "__self__", None)
    assert isinstance(rubric, EnvironmentRubric)
    return rubric


def test_rows_become_tasks() -> None:
    tasks = load("?size=5")
    assert {(task.id, task.prompt, task.answer) for task in tasks} == {
        (str(i), f"{i} + {i}?", str(2 * i)) for i in range(5)
    }
    assert all(task.inputs is None and task.metadata["info"] == {"most": 20} for task in tasks)
    assert [task.id for task in load("?size=5", count=2)] == [task.id for task in tasks[:2]]
    assert [task.prompt for task in load(split="eval")] == ["50 + 50?"]
    (task,) = load("?system=Add.", split="eval")
    said = [{"role": "system", "content": "Add."}, {"role": "user", "content": "50 + 50?"}]
    assert (task.prompt, task.inputs) == ("50 + 50?", {"messages": said})


def test_the_rubric_scores_by_name_and_weight() -> None:
    (task,) = load(split="eval")
    rubric = rubric_of(task)
    assert rubric.weights == {"exact": 1.0, "short": 0.25, "turns": 0.0, "num_turns": 0.0}
    said = [
        {"role": "assistant", "content": "Let me see."},
        {"role": "assistant", "content": "It is 100"},
    ]
    assert asyncio.run(rubric.score(said)) == {
        "exact": 1.0,
        "short": 1.0,
        "turns": 2.0,
        "num_turns": 2.0,
    }
    assert task.verify is not None
    assert task.verify("It is 100") == 1.0
    assert task.verify("After a long while I think that it is 100") == pytest.approx(1 / 1.25)
    assert task.verify("It is 101") == pytest.approx(0.25 / 1.25)


def test_a_function_that_fails_is_no_wrong_answer() -> None:
    (task,) = load("?kind=torn", split="eval")
    assert task.verify is not None
    with pytest.raises(ConnectionError, match="the judge is away"):
        task.verify("It is 100")


def test_tools_are_given_to_a_graph_and_watched() -> None:
    (tool,) = environment_tools("sums-env?kind=tool")
    assert (
        tool.name == "add"
        and tool.invoke({"a": 2, "b": 3}) == 5
        and "Add two numbers" in tool.description
    )
    (task,) = load("?kind=tool", split="eval")
    asked = {
        "id": "c",
        "type": "function",
        "function": {"name": "add", "arguments": json.dumps({"a": 50, "b": 50})},
    }
    said = [
        {"role": "assistant", "content": "", "tool_calls": [asked]},
        {"role": "tool", "content": "100", "tool_call_id": "c"},
        {"role": "assistant", "content": "100"},
    ]
    found = asyncio.run(rubric_of(task).score(said))
    assert (found["exact"], found["total_tool_calls"]) == (1.0, 1.0)
    assert rubric_of(task).weights["total_tool_calls"] == 0.0


CALL = '<tool_call>{"name": "add", "arguments": {"a": 50, "b": 50}}</tool_call>'


@pytest.mark.parametrize(
    ("answers", "reward"),
    [((CALL, "It is 100"), 1.0), (("It is 100",), 0.25), ((CALL, "It is 99"), 0.75)],
)
async def test_its_rewards_see_the_tool_calls_of_a_run(
    answers: tuple[str, ...], reward: float, store: RunStore, environment: LocalEnvironment
) -> None:
    tools = environment_tools("sums-env?kind=used")

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {
            "messages": [
                await policy().bind_tools(tools).ainvoke([("system", "Add."), *state["messages"]])
            ]
        }

    builder = StateGraph(MessagesState).add_node("ask", ask).add_node("tools", ToolNode(tools))
    builder.add_edge(START, "ask").add_conditional_edges("ask", tools_condition).add_edge(
        "tools", "ask"
    )
    (episode,) = group_episodes(
        load("?kind=used", split="eval"), 1, run_id="r", stage="eval", seed=0, graph="own"
    )
    with ScriptedEngine(list(answers)) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        done = await runner.run(replace(episode, graph=builder.compile()))
    assert done.rewards == {"correct": reward}, done.error


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("?kind=talking", "answers the model in turns of its own"),
        ("?kind=prepared", "takes part in a run by its own setup_state"),
        ("?kind=stateful", "its tools have a state"),
        ("?kind=group", "compares the answers of a group"),
        ("?kind=watched", "no function with a positive weight"),
        ("?kind=broken", "cannot be loaded: RuntimeError: .*no such kind"),
        ("?colour=red", "cannot be loaded: .*colour"),
    ],
)
def test_an_environment_that_a_graph_cannot_stand_for_is_refused(query: str, said: str) -> None:
    with pytest.raises(TaskError, match=said) as caught:
        load(query)
    assert "\n" not in str(caught.value)


def test_what_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TaskError, match="verifiers:no-such-env cannot be loaded"):
        load_tasks("verifiers:no-such-env", split="train", seed=0)
    monkeypatch.setitem(sys.modules, "verifiers", type(sys)("verifiers"))
    with pytest.raises(HrmError, match=r"no load_environment of its v0 interface.*<0.4"):
        load("?size=7")
    monkeypatch.setitem(sys.modules, "verifiers", None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(HrmError, match=r"pip install 'verifiers<0.4'"):
        load("?size=8")


def test_the_code_of_an_environment_is_kept_with_the_run(tmp_path: Path) -> None:
    spec = "verifiers:someone/sums-env"
    keep_sources(spec, "eval", tmp_path / "run")
    kept = read_sources(tmp_path / "run")
    assert (
        kept is not None
        and set(kept.digests) == {"sums_env"}
        and ("verifiers" in kept.versions) is INSTALLED
    )
    (tmp_path / "sums_env.py").write_text(CODE + "# more\n")
    assert changed_sources(spec, "eval", tmp_path / "run") == ["sums_env"]
