"""Draws of a recorded program's nodes. A replay returns them if the program asked to record them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hrm_agent import record
from hrm_agent.cli.main import main
from hrm_agent.runtime.replay.player import replay
from hrm_agent.store import open_store
from tests.support.graphs.drawing_agent import graph


def test_draws_of_a_program_are_given_back(tmp_path: Path) -> None:
    with record(tmp_path / "x.db", draws=True):
        first, second = graph.invoke({"input": "a"}), graph.invoke({"input": "b"})
    assert first["output"] != second["output"]
    with open_store(tmp_path / "x.db") as store:
        assert [replay(store, header.id).equal for header in store.journal.headers()] == [
            True,
            True,
        ]


PROGRAM = """
import random
from datetime import datetime
from typing import TypedDict

from langchain_core.messages import HumanMessage
from langgraph.graph import START, StateGraph

from tests.support.graphs.own_agent import HostedModel

DRAWS = {
    "clock": lambda: f"Today is {datetime.now()}.",
    "words": lambda: random.choice(list("abcdefghijklmnopqrstuvwxyz") * 1000) * random.randrange(1000),
    "none": lambda: __import__("os").environ.get("SAID", "said then"),
}


class State(TypedDict, total=False):
    task: str
    answer: str


def ask(state):
    prompt = DRAWS[state["task"]]()
    return {"answer": HostedModel(disable_streaming=True).invoke([HumanMessage(prompt)]).text}


graph = StateGraph(State).add_node("ask", ask).add_edge(START, "ask").compile()
if __name__ == "__main__":
    for what in DRAWS:
        graph.invoke({"task": what}, {"configurable": {"thread_id": what}})
"""


@pytest.mark.parametrize("draws", [(), ("--draws",)])
def test_a_replay_that_differs_by_what_a_node_drew_says_how_to_record_it(
    draws: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    root = str(Path(__file__).parents[3])
    recording = [sys.executable, "-m", "hrm_agent", "record", "--store", "x.db", *draws]
    command = [*recording, "--", sys.executable, "program.py"]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": root}, check=True)
    monkeypatch.chdir(tmp_path)
    for what in ("clock", "words"):
        assert main(["replay", what, "--store", "x.db"]) == (0 if draws else 1)
        said = capsys.readouterr().out
        assert (
            ("hrm-agent record --draws" in said) is ("HRM_AGENT_DRAWS=1" in said) is not bool(draws)
        )
    monkeypatch.setenv("SAID", "said now")
    assert main(["replay", "none", "--store", "x.db"]) == 1
    assert "took anew" not in capsys.readouterr().out
    assert main(["replay", "--check", "x.db"]) == 1
    assert ("HRM_AGENT_DRAWS=1" in capsys.readouterr().out) is not bool(draws)


REPLACED = """
import time
from langchain_core.messages import HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from hrm_agent import record

clock = time.time
time.time = lambda: clock() + 3600
graph = StateGraph(MessagesState).add_node("ask", lambda _: {"messages": [HumanMessage(str(time.time()))]})
with record("x.db", draws=True):
    print(graph.add_edge(START, "ask").compile().invoke({"messages": []})["messages"][-1].text)
"""


def test_a_program_that_has_replaced_its_clock_keeps_it(tmp_path: Path) -> None:
    """Programs replace the clock with freezegun or in a test. The recorder replaces it in C, where
    a Python function crashed the process.
    """
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    ran = subprocess.run(
        [sys.executable, "-c", REPLACED],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) > 1e9 and "The program has replaced time.time:" in ran.stderr
