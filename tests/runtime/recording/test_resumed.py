"""Threads begun by a program and continued by a user: resumed, forked, replayed."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from hrm_agent import record
from hrm_agent.cli.main import main
from hrm_agent.store import open_store
from hrm_agent.trajectory import RunStatus, StopReason, Trajectory
from tests.support.graphs import asking_agent, own_agent

QUESTION: Any = {"messages": [HumanMessage("hello")]}
CONFIG: Any = {"configurable": {"thread_id": "q"}}
WHERE = ("--store", "x.db")
GRAPH = "tests.support.graphs.asking_agent:graph"


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def found(thread: str) -> Trajectory:
    with open_store("x.db") as store:
        return store.journal.trajectory(thread)


def test_a_question_of_a_recorded_program_is_answered_by_a_command() -> None:
    with record("x.db"):
        asking_agent.graph.invoke(QUESTION, CONFIG)
    assert found("q").stop_reason is StopReason.INTERRUPT
    assert main(["resume", "q", "--answer", "yes", *WHERE]) == 0
    assert (found("q").answer, found("q").policy, len(found("q").calls)) == (
        "You said yes.",
        "HostedModel",
        1,
    )
    assert main(["replay", "q", *WHERE]) == main(["fork", "q", "--at", "1", "--run", *WHERE]) == 0


def test_a_graph_without_a_name_is_named_on_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with record("x.db"):
        asking_agent.made().invoke(QUESTION, CONFIG)
    for words in (
        ["resume", "q", "--answer", "yes"],
        ["resume", "q", "--at", "1"],
        ["replay", "q"],
    ):
        assert main([*words, *WHERE]) == 2
        assert "--graph package.module:attribute" in capsys.readouterr().err
    assert main(["replay", "q", "--graph", GRAPH, *WHERE]) == 0
    assert main(["resume", "q", "--answer", "yes", "--graph", GRAPH, *WHERE]) == 0
    assert found("q").answer == "You said yes."


def test_a_thread_of_a_graph_with_its_own_checkpointer_is_resumed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with record("x.db"):
        asking_agent.remembering.invoke(QUESTION, CONFIG)
    assert main(["fork", "q", "--name", "branch", *WHERE]) == 0
    for thread in ("q", "branch"):
        assert main(["resume", thread, "--answer", "yes", *WHERE]) == 0
        assert found(thread).answer == "You said yes."
        assert main(["replay", thread, *WHERE]) == 0
    (own,) = asking_agent.remembering.get_state(CONFIG).interrupts
    assert own.value


def test_a_thread_without_a_checkpoint_on_record_says_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with record("x.db"):
        asking_agent.remembering.invoke(QUESTION, CONFIG)
    with open_store("x.db") as store:
        store.checkpointer.delete_thread("q")  # as an earlier version left it
    for words in (
        ["resume", "q", "--answer", "yes"],
        ["replay", "q"],
        ["history", "q"],
        ["fork", "q"],
    ):
        assert main([*words, *WHERE]) == 2
        assert "a checkpointer of its own, InMemorySaver" in capsys.readouterr().err
    assert main(["show", "q", *WHERE]) == main(["history", *WHERE]) == 0
    assert "hello" in capsys.readouterr().out


def _in_child() -> None:
    own_agent.graph.invoke({"messages": [HumanMessage("in the child")]})


def test_a_forked_process_records_into_the_same_store() -> None:
    with record("x.db"):
        own_agent.graph.invoke({"messages": [HumanMessage("before")]})
        child = multiprocessing.get_context("fork").Process(target=_in_child)
        child.start()
        child.join(60)
        own_agent.graph.invoke({"messages": [HumanMessage("after")]})
    assert child.exitcode == 0
    with open_store("x.db") as store:
        runs = list(store.journal.trajectories())
    assert [t.task.prompt for t in runs] == ["before", "in the child", "after"]
    assert {t.status for t in runs} == {RunStatus.COMPLETED}
