"""Graphs in every form run, are recorded by name, and are replayed, forked and resumed as they ran."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from hrm_agent.cli.main import main
from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import GraphError
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.execution.answer_path import text_at
from hrm_agent.runtime.execution.loading import load_graph
from hrm_agent.runtime.replay.player import replay
from hrm_agent.store import RunStore, open_store
from hrm_agent.trajectory import TaskRef, Trajectory
from tests.support.graphs import forms, own_agent

FORMS = "tests.support.graphs.forms"
INPUT = {"topic": {"name": "whales", "depth": 3}}


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*words: str, thread: str = "t") -> Trajectory:
    assert main(["run", *words, "--thread", thread]) == 0
    with open_store("runs/store.db") as store:
        return store.journal.trajectory(thread)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("plain", "plain to hi"),
        ("later", "later to hi"),
        ("around", "around to hi"),
        ("around_sync", "around_sync to hi"),
    ],
)
def test_a_factory_is_run_and_replayed(name: str, answer: str) -> None:
    assert run("hi", "--graph", f"{FORMS}:{name}").answer == answer
    assert main(["replay", "t"]) == main(["fork", "t", "--run"]) == main(["history", "t"]) == 0


def test_what_a_factory_reads_from_the_config_is_recorded_and_given_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = (
        "--graph",
        f"{FORMS}:configured",
        "--config",
        "greeting=hello",
        "--config",
        'more={"a": [1, 2]}',
    )
    assert run("you", *given).answer == "hello to you"
    assert main(["replay", "t"]) == main(["resume", "t"]) == 0
    assert main(["fork", "t", "--at", "1", "--run", "--json"]) == 0
    assert "hello to you" in capsys.readouterr().out
    assert main(["fork", "t", "--at", "1", "--run", "--json", "--config", "greeting=bye"]) == 0
    assert "bye to you" in capsys.readouterr().out
    with open_store("runs/store.db") as store:
        assert store.journal.trajectory("t").task.metadata["configurable"]["more"] == {"a": [1, 2]}
    assert main(["run", "x", "--graph", f"{FORMS}:configured"]) == 2
    assert "raised KeyError: 'greeting'" in capsys.readouterr().err
    assert main(["run", "x", *given, "--config", "api_key=1"]) == 2
    assert "named like a secret" in capsys.readouterr().err
    assert main(["run", "x", *given, "--config", 'none={"a": [null]}']) == 2
    assert "null" in capsys.readouterr().err


async def test_a_context_is_open_while_its_graph_runs(
    store: RunStore, environment: LocalEnvironment
) -> None:
    forms.opened.clear()
    with ScriptedEngine([]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        task = TaskRef(id="1", family="test", prompt="hi")
        trajectory = await runner.run(
            Episode(task, "t", graph=forms.around), lambda *_: forms.opened.append("step")
        )
    assert forms.opened == ["open", "step", "close"] and trajectory.graph == f"{FORMS}:around"


def test_a_state_of_any_shape_is_given_as_json_and_the_answer_is_where_it_is_said_to_be() -> None:
    Path("input.json").write_text(json.dumps(INPUT))
    where = ("--graph", f"{FORMS}:report", "--answer-path", "sections[0].text")
    first = run("--input", json.dumps(INPUT), *where)
    second = run(
        "--input", "@input.json", *where, "--context", "allow_clarification=false", thread="second"
    )
    assert first.answer == "whales at 3, clarifying True" and first.task.prompt == json.dumps(INPUT)
    assert second.answer == "whales at 3, clarifying False", (
        "an option that the nodes read from the config"
    )
    assert main(["replay", "--check", "runs/store.db"]) == main(["resume", "second"]) == 0
    assert run("--input", "[1, 2, 3]", "--graph", f"{FORMS}:workflow", thread="third").answer == "6"
    said = json.dumps({"messages": [{"role": "user", "content": "6 * 7?"}]})
    talked = run(
        "--input", said, "--graph", "tests.support.graphs.own_agent:graph", thread="fourth"
    )
    assert (talked.task.prompt, talked.answer) == ("6 * 7?", "It is 42.")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--graph", f"{FORMS}:two", "x"], "takes (one, other)"),
        (["--graph", f"{FORMS}:_write", "x"], "takes (state, config)"),
        (["--graph", f"{FORMS}:report", "x"], "Give the input as JSON"),
        (
            ["--graph", f"{FORMS}:report", "--input", '{"topics": 1}'],
            "no field 'topics'. Did you mean 'topic'?",
        ),
        (["--graph", f"{FORMS}:report", "--input", "{"], "--input is not JSON"),
        (["--graph", f"{FORMS}:report", "--input", '{"topic": NaN}'], "NaN is no number of JSON"),
        (["--graph", f"{FORMS}:report", "--input", "[1]"], "an object with fields, not list"),
        (["--graph", f"{FORMS}:report", "--input", "@none.json"], "none.json cannot be read"),
        (
            ["--graph", f"{FORMS}:report", "--input", "{}", "--answer-path", "sections["],
            "not a path in a state",
        ),
        (
            ["--graph", f"{FORMS}:report", "--input", "{}", "--answer-path", "section.0"],
            "no field 'section'",
        ),
        (
            ["--graph", f"{FORMS}:report", "--input", "{}", "--context", "depth=3"],
            "no option 'depth'",
        ),
        (["--graph", f"{FORMS}:plain", "x", "--context", "depth=3"], "no option 'depth'"),
        (["--graph", "(LangGraph)", "x"], "--graph package.module:attribute"),
        ([], "No task was given"),
    ],
)
def test_mistakes_are_told(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *words]) == 2
    assert message in capsys.readouterr().err


async def test_a_graph_object_is_run_where_a_name_is(
    store: RunStore, environment: LocalEnvironment
) -> None:
    inside = StateGraph(MessagesState)
    inside.add_node("answer", lambda state: {"messages": [AIMessage("inside")]})
    inside.add_edge(START, "answer")
    graphs: dict[str, Any] = {
        "object": own_agent.graph,
        "builder": own_agent.builder,
        "inside": inside,
    }
    with ScriptedEngine([]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        task = TaskRef(id="1", family="test", prompt="6 * 7?")
        found = await runner.run_all(
            Episode(task, name, graph=graph) for name, graph in graphs.items()
        )
    assert [t.answer for t in found] == ["It is 42.", "It is 42.", "inside"]
    own = "tests.support.graphs.own_agent"
    assert [t.graph for t in found] == [f"{own}:graph", f"{own}:builder", "(StateGraph)"]
    assert replay_of(store, "inside", inside) and replay_of(store, "object", None)
    with pytest.raises(GraphError, match="no module held it in an attribute"):
        replay_of(store, "inside", None)
    with pytest.raises(GraphError, match="int is not a LangGraph graph"):
        load_graph(5)


def replay_of(store: RunStore, thread: str, graph: Any) -> bool:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        assert asyncio.get_running_loop()
        return (
            pool.submit(replay, store, thread, graph=load_graph(graph) if graph else None)
            .result()
            .equal
        )


def test_paths_into_a_state() -> None:
    state = {"report": {"sections": [{"text": "one"}, {"text": AIMessage("two")}]}, "n": 3}
    paths = [
        "report.sections.0.text",
        "$.report['sections'][-1].text",
        "n",
        "report.sections.5",
        "none.at.all",
    ]
    assert [text_at(state, path) for path in paths] == ["one", "two", "3", None, None]
