"""Runs answered by a provider's model, as `run`, `show`, `history`, `diff` and the exports report
them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.store import open_store
from hrm_agent.trajectory import CallUsage
from hrm_agent.trajectory.formats import export_to, import_from
from tests.cli.conftest import Command
from tests.support.serving.providers import ProviderServer

PROGRAM = '''
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def multiply(a: float, b: float, note: str) -> float:
    """Multiply two numbers."""
    return a * b


model = ChatOpenAI(model="gpt-test", api_key="k", base_url="{url}/v1", max_retries=0).bind_tools([multiply])


def ask(state):
    return {{"messages": [model.invoke([("system", "You multiply."), *state["messages"]])]}}


builder = StateGraph(MessagesState).add_node("ask", ask).add_node("tools", ToolNode([multiply]))
graph = builder.add_edge(START, "ask").add_conditional_edges("ask", tools_condition).add_edge("tools", "ask").compile()
'''
USED = CallUsage(input_tokens=10, output_tokens=6, cached_tokens=2, reasoning_tokens=4, cost=0.0042)


@pytest.fixture
def ended(hrm: Command, scripted: str, tmp_path: Path) -> Iterator[Any]:
    """Last event of the run, which called the provider twice and its policy never."""
    with ProviderServer(cost=0.0021) as server:
        (tmp_path / "hosted.py").write_text(PROGRAM.format(url=server.url))
        done = hrm(
            "run",
            "6 * 7.5?",
            "--graph",
            "./hosted.py:graph",
            "--policy",
            scripted,
            "--thread",
            "t",
            "--json",
        )
        assert done.code == 0, done.err
        yield done.lines[-1]


def test_it_names_the_model_that_answered_and_what_it_used(
    ended: Any, scripted: str, hrm: Command
) -> None:
    assert ended["models"] == ["gpt-test-0"] and CallUsage.model_validate(ended["used"]) == USED
    (row,) = hrm("history", "--json").json
    assert (row["model"], row["tokens"]) == ("gpt-test-0", 6)
    shown = hrm("show", "t").out
    assert "10 prompt tokens (2 cached), 6 completion tokens (4 of reasoning), cost 0.0042" in shown
    assert (
        "gpt-test-0 (asked for gpt-test), 5 prompt tokens (1 cached), 3 completion tokens" in shown
    )
    assert "no sampling parameters sent" in shown and "temperature" not in shown
    for text in (shown, hrm("history").out, hrm("history", "t").out):
        assert "scripted" not in text
    first, *_ = [m for m in hrm("history", "t", "--json").json["moments"] if m["model_calls"]]
    assert (first["models"], first["input_tokens"], first["output_tokens"], first["cost"]) == (
        ["gpt-test-0"],
        5,
        3,
        0.0021,
    )
    sides = hrm("diff", "t", "t@0", "--json").json
    assert sides["a"]["tokens"] == 6


def test_the_exports_hold_all_of_it(ended: Any, hrm: Command, tmp_path: Path) -> None:
    assert hrm("export", "runs", "--out", "x.verifiers").code == 0
    trace = json.loads((tmp_path / "x.verifiers").read_text())
    roles = [node["message"]["role"] for node in trace["nodes"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    assert [node["parent"] for node in trace["nodes"]] == [None, 0, 1, 2, 3]
    assert (
        trace["tools"][0]["name"] == "multiply"
        and trace["calls"][0]["sampling"]["temperature"] is None
    )
    assert hrm("export", "runs", "--out", "x.chat").code == 0
    row = json.loads((tmp_path / "x.chat").read_text())
    assert [message["role"] for message in row["messages"]] == roles
    assert isinstance(row["messages"][2]["tool_calls"][0]["function"]["arguments"], dict)
    assert row["tools"][0]["function"]["name"] == "multiply"
    assert (row["role"], row["model"], row["answer"]) == ("ask", "gpt-test-0", ended["answer"])


@pytest.mark.parametrize("name", ["jsonl", "parquet"])
def test_it_is_exported_whole_and_read_back(
    name: str, ended: Any, hrm: Command, tmp_path: Path
) -> None:
    with open_store(tmp_path / "runs" / "store.db") as store:
        (original,) = store.journal.trajectories()
    export_to(tmp_path / "x", [original], name)
    assert [*import_from(tmp_path / "x", name)] == [original]
    assert hrm("import", "x", "--format", name, "--store", "new.db").code == 0
    assert hrm("import", "x", "--format", name, "--store", "new.db", "--json").json["present"] == 1
    with open_store(tmp_path / "new.db") as store:
        assert [*store.journal.trajectories()] == [original]
    assert hrm("lint", "new.db").code == 0 and hrm("store", "verify", "new.db").code == 0
