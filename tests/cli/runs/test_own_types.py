"""Threads whose states hold users' own types: opened if the types are named, or with a graph that
declares them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.store import open_store
from tests.cli.conftest import Command

PROGRAM = """
from typing import Any, TypedDict

from langgraph.graph import START, StateGraph
from pydantic import BaseModel


class Lamp(BaseModel):
    watts: int


class Other(BaseModel):
    watts: int


class Open(TypedDict):
    task: str
    thing: Any
    output: str


class Declared(TypedDict):
    task: str
    thing: Lamp
    output: str


def light(state: Open) -> dict[str, Any]:
    return {"thing": Lamp(watts=60), "output": "lit"}


def dim(state: Open) -> dict[str, Any]:
    return {"thing": Lamp(watts=state["thing"].watts - 20)}


def made(state: type) -> Any:
    return StateGraph(state).add_sequence([light, dim]).add_edge(START, "light").compile()


graph, declared = made(Open), made(Declared)
"""
LAMP = "lamps_of_mine:Lamp"


@pytest.fixture
def thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Thread that a user's program made with the store's checkpointer."""
    (tmp_path / "lamps_of_mine.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    lamps: Any = import_module("lamps_of_mine")
    (tmp_path / "runs").mkdir()
    with open_store(tmp_path / "runs" / "store.db", allow=[LAMP]) as store:
        kept = lamps.graph.copy(update={"checkpointer": store.checkpointer})
        kept.invoke({"task": "light it"}, {"configurable": {"thread_id": "mine"}})
    yield "mine"
    del sys.modules["lamps_of_mine"]


@pytest.mark.parametrize("words", [("history", "mine"), ("diff", "mine", "mine@2")])
def test_it_is_opened_by_who_names_the_type_or_the_graph(
    words: tuple[str, ...], thread: str, hrm: Command
) -> None:
    refused = hrm(*words)
    assert refused.code == 2 and "lamps_of_mine.Lamp, which is not allowed" in refused.err
    assert "--allow package.module:Type" in refused.err
    assert hrm(*words, "--allow", "lamps_of_mine:Other").code == 2, "no other type is read for it"
    assert hrm(*words, "--graph", "lamps_of_mine:graph").code == 2, (
        "its state does not say what it holds"
    )
    for named in (("--allow", LAMP), ("--graph", "lamps_of_mine:declared")):
        done = hrm(*words, *named)
        assert done.code == 0, done.err
    assert "watts" in hrm("diff", "mine", "mine@2", "--allow", LAMP).out


@pytest.mark.parametrize("named", [("--allow", LAMP), ("--graph", "lamps_of_mine:declared")])
def test_it_is_forked_and_resumed(
    named: tuple[str, ...], thread: str, scripted: str, hrm: Command
) -> None:
    graph = () if named[0] == "--graph" else ("--graph", "lamps_of_mine:graph")
    policy = ("--policy", scripted)
    refused = hrm("fork", thread, "--at", "before:dim", "--graph", "lamps_of_mine:graph", *policy)
    assert refused.code == 2 and "which is not allowed" in refused.err
    done = hrm("fork", thread, "--at", "before:dim", *named, *graph, *policy)
    assert done.code == 0, done.err
    allow = named if named[0] == "--allow" else ()
    resumed = hrm("resume", "mine/fork-1", *allow, "--json")
    assert resumed.code == 0, resumed.err
    assert resumed.lines[-1]["answer"] == "lit"
    assert hrm("show", "mine/fork-1", *allow).code == 0
    assert hrm("replay", "mine/fork-1", *allow).code == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Lamp", "names no type"),
        (":Lamp", "names no type"),
        ("nowhere_to_be_found:Lamp", "does not import: ModuleNotFoundError"),
        ("lamps_of_mine:Lmap", "there is no type 'Lmap'"),
        ("lamps_of_mine:light", "there is no type 'light'"),
    ],
)
def test_a_type_that_is_not_there_is_told(name: str, said: str, thread: str, hrm: Command) -> None:
    done = hrm("history", thread, "--allow", name)
    assert done.code == 2 and said in " ".join(done.err.split())


def test_a_new_run_holds_what_is_named_and_is_resumed_with_it(
    thread: str, scripted: str, hrm: Command
) -> None:
    words = ("run", "light it", "--graph", "lamps_of_mine:graph", "--policy", scripted, "--json")
    refused = hrm(*words, "--thread", "refused")
    assert (
        refused.code == 2
        and "lamps_of_mine.Lamp" in refused.err
        and "--allow package.module:Type" in refused.err
    )
    assert hrm("run", "--allow", LAMP, *words[1:], "--thread", "new").lines[-1]["answer"] == "lit"
    again = hrm("resume", "new", "--at", "before:dim", "--json")
    assert again.code == 0 and again.lines[-1]["answer"] == "lit", (
        "it is kept with the thread's options"
    )
    assert hrm("fork", "new", "--at", "before:dim").code == 0
    other = hrm(*words, "--thread", "other", "--allow", "lamps_of_mine:Lmap")
    assert other.code == 2 and "there is no type 'Lmap'" in other.err


@pytest.mark.parametrize("command", ["collect", "eval"])
def test_a_run_of_many_tasks_holds_it_and_a_resumed_one_is_told(
    command: str, thread: str, scripted: str, hrm: Command
) -> None:
    Path("tasks.jsonl").write_text('{"question": "light it", "answer": "lit"}\n')
    words = (
        command,
        "--tasks",
        "jsonl:tasks.jsonl",
        "--graph",
        "lamps_of_mine:graph",
        "--policy",
        scripted,
    )
    asked = ("--count", "1", "--samples", "1", "--rewards", "answer:last_line", "--json")
    assert hrm(*words, *asked, "--out", "without").code == 2
    done = hrm(*words, *asked, "--out", "with", "--allow", LAMP)
    assert done.code == 0, done.err
    assert hrm("resume", "with", "--allow", "lamps_of_mine:Other").code == 0
    assert [run["status"] for run in hrm("history", "--store", "with", "--json").json] == ["answer"]


def test_a_program_that_is_recorded_holds_it(thread: str, hrm: Command) -> None:
    Path("program.py").write_text(
        "import lamps_of_mine\n\nlamps_of_mine.graph.invoke({'task': 'light it'})\n"
    )
    command = ("--", sys.executable, "program.py")
    assert hrm("record", "--store", "recorded.db", "--allow", LAMP, *command).code == 0
    assert hrm("replay", "--check", "recorded.db", "--allow", LAMP).code == 0
    assert (
        hrm("record", "--store", "recorded.db", "--allow", "lamps_of_mine:Lmap", *command).code == 2
    )


def test_training_holds_it(thread: str, hrm: Command) -> None:
    Path("asking.py").write_text(
        PROGRAM
        + "\nfrom hrm_agent.models import policy\n\n\ndef ask(state: Open) -> dict[str, Any]:\n   "
        " return {'thing': Lamp(watts=1), 'output':"
        " policy(max_tokens=2).invoke(state['task']).text}\n\n\ngraph ="
        " StateGraph(Open).add_sequence([ask, dim]).add_edge(START, 'ask').compile()\n"
    )
    Path("tasks.jsonl").write_text('{"question": "6 * 7?", "answer": "42"}\n')
    words = (
        "train",
        "rl",
        "--graph",
        "./asking.py:graph",
        "--tasks",
        "jsonl:tasks.jsonl",
        "--out",
        "rl",
    )
    small = ("--algorithm", "grpo", "--steps", "1", "--prompts-per-step", "1", "--group-size", "2")
    done = hrm(*words, *small, "--allow", "./asking.py:Lamp")
    assert done.code == 0, done.err
    runs = hrm("history", "--store", "rl", "--json").json
    assert [run["status"] for run in runs] == ["answer", "answer"]
