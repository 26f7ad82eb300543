"""A user's unchanged graph: recorded with its own model, and trainable with the policy standing in for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graphs.episode import Episode, EpisodeRunner
from graphs.loading import load_graph
from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import ConfigError, GraphError
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.store import RunStore
from hrm_agent.trajectory import RunStatus, TaskRef, ToolStatus, Trajectory
from hrm_agent.trajectory.lint import lint

OWN = "tests.graphs.own_agent:graph"
TASK = TaskRef(id="1", family="test", prompt="What is 6 * 7?")
CALL = '<tool_call>{"name": "multiply", "arguments": {"a": 6, "b": 7}}</tool_call>'


async def run(store: RunStore, environment: LocalEnvironment, *, stand_in: bool, graph: str = OWN) -> Trajectory:
    with ScriptedEngine([CALL, "It is 42, says the policy."]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment, stand_in=stand_in)
        return await runner.run(Episode(TASK, f"thread {stand_in}", graph=graph, seed=1))


async def test_its_own_model_is_recorded_and_not_trainable(store: RunStore, environment: LocalEnvironment) -> None:
    trajectory = await run(store, environment, stand_in=False)
    assert (trajectory.status, trajectory.answer) == (RunStatus.COMPLETED, "It is 42.")
    assert len(trajectory.calls) == 2 and not trajectory.trainable
    assert all(call.untrainable and call.request for call in trajectory.calls)
    assert [(c.name, c.arguments, c.status, c.content) for c in trajectory.tool_calls] == [
        ("multiply", {"a": 6, "b": 7}, ToolStatus.OK, "42")
    ]
    assert lint(trajectory) == []


async def test_the_policy_stands_in_for_it_and_it_is_trainable(store: RunStore, environment: LocalEnvironment) -> None:
    trajectory = await run(store, environment, stand_in=True)
    assert trajectory.answer == "It is 42, says the policy." and trajectory.trainable
    assert trajectory.calls[1].parent == trajectory.calls[0].id
    assert [c.status for c in trajectory.tool_calls] == [ToolStatus.OK]
    assert lint(trajectory) == []


def test_a_graph_that_is_no_graph_says_what_it_is() -> None:
    cases: list[tuple[str, str]] = [
        ("tool_lop", "Did you mean 'tool_loop'?"),
        ("no.such.module:graph", "does not import: ModuleNotFoundError"),
        ("tests.graphs.own_agent:grap", "Graphs found there: builder, graph."),
        ("tests.graphs.own_agent:multiply", "is StructuredTool, no LangGraph graph"),
    ]
    for name, message in cases:
        with pytest.raises(GraphError) as caught:
            load_graph(name)
        assert message in str(caught.value)


def test_a_builder_is_compiled_and_a_file_is_imported(tmp_path: Path, monkeypatch: Any) -> None:
    assert load_graph("tests.graphs.own_agent:builder").channels.keys() >= {"messages"}
    (tmp_path / "mine.py").write_text("from tests.graphs.own_agent import graph as agent\n")
    monkeypatch.chdir(tmp_path)
    assert load_graph("./mine.py:agent") is load_graph(OWN)


async def test_an_option_that_the_graph_does_not_know(store: RunStore, environment: LocalEnvironment) -> None:
    with ScriptedEngine([]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        with pytest.raises(ConfigError, match="Did you mean 'max_turns'"):
            await runner.run(Episode(TASK, "thread", context={"max_turn": 3}))
    assert list(store.journal.trajectories()) == []


async def test_what_a_graph_raises_is_on_record(store: RunStore, environment: LocalEnvironment) -> None:
    with ScriptedEngine([]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        trajectory = await runner.run(Episode(TASK, "thread"))
    assert trajectory.status is RunStatus.FAILED and "one more was asked for" in (trajectory.error or "")
    assert lint(trajectory) == []
