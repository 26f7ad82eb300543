"""Graphs with their own models need no policy. It is loaded when first requested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from hrm_agent.cli.main import main
from hrm_agent.models import policy
from hrm_agent.runtime.execution.lazy_policy import (
    model_that_answered,
    policy_for,
    policy_of_record,
)
from hrm_agent.store import open_store
from hrm_agent.trajectory import RunStatus, Trajectory
from tests.support.graphs.own_agent import HostedModel

PROJECT = Path(__file__).parents[3]
OWN = "tests.support.graphs.own_agent:graph"
HERE = "tests.runtime.execution.test_lazy_policy"


def _asking(*nodes: Any) -> Any:
    builder = StateGraph(MessagesState)
    for number, node in enumerate(nodes):
        builder.add_node(str(number), node)
        builder.add_edge(START, str(number))
    return builder.compile()


def ask_policy(state: MessagesState) -> dict[str, Any]:
    return {"messages": [policy().invoke(state["messages"])]}


def ask_own(state: MessagesState) -> dict[str, Any]:
    return {"messages": [HostedModel(disable_streaming=True).invoke(state["messages"])]}


both = _asking(ask_policy, ask_policy, ask_own, ask_own, ask_own)
none = _asking(lambda state: {"messages": [AIMessage("by hand")]})


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def recorded() -> list[Trajectory]:
    with open_store("runs/store.db", create=False) as store:
        return list(store.journal.trajectories())


def test_a_graph_with_its_own_model_is_run_without_torch_and_named_by_who_answered(
    capsys: Any,
) -> None:
    program = f"""
import sys
from hrm_agent.cli.main import main
assert main(["run", "What is 6 * 7?", "--graph", "{OWN}", "--thread", "t"]) == 0
assert main(["fork", "t", "--at", "1", "--graph", "{OWN}", "--run"]) == 0
print(sorted({{"torch", "transformers"}} & sys.modules.keys()))
"""
    words = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(words, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().splitlines()[-1] == "[]"
    assert {t.policy for t in recorded()} == {"HostedModel"} and len(recorded()) == 2
    assert (
        main(["show", "t", "--store", "runs/store.db"])
        == main(["history", "--store", "runs/store.db"])
        == 0
    )
    shown = capsys.readouterr().out
    assert "builtin:trained" not in shown and shown.count("HostedModel") >= 3


def test_a_policy_that_a_node_asks_is_loaded_then_and_is_the_records(capsys: Any) -> None:
    assert (
        main(
            [
                "run",
                "1 + 1",
                "--graph",
                f"{HERE}:both",
                "--seed",
                "1",
                "--max-tokens",
                "8",
                "--json",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["policy"] == "builtin:trained"
    (trajectory,) = recorded()
    assert (
        sorted(call.model for call in trajectory.calls)
        == ["HostedModel"] * 3 + ["builtin:trained"] * 2
    )
    assert len(trajectory.policy_calls) == 2


def test_a_run_that_nobody_answered_names_nobody() -> None:
    assert main(["run", "x", "--graph", f"{HERE}:none"]) == 0
    assert [(t.policy, t.status) for t in recorded()] == [("", RunStatus.COMPLETED)]
    assert policy_of_record(recorded()[0]) == "builtin:trained"


def test_what_is_wrong_with_a_named_policy_is_told_first(capsys: Any) -> None:
    assert main(["run", "x", "--graph", OWN, "--policy", "no/such/folder"]) == 2
    assert "There is no model folder" in capsys.readouterr().err
    assert recorded() == []
    assert policy_for("builtin:trained", OWN) == "builtin:trained"
    assert not isinstance(policy_for("builtin:trained", OWN, "tool_loop"), str)
    assert model_that_answered((), "builtin:trained") == ""
