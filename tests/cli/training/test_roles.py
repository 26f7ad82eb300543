"""`hrm-agent roles`: swaps of single roles, the budget, and interrupted runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.cli.main import main
from hrm_agent.store import open_store
from tests.cli.conftest import Command
from tests.support.serving.providers import LANGCHAIN, ProviderServer

GRAPH = """
from langchain_core.messages import HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

from hrm_agent.models import policy


def request(word, state):
    text = "; ".join(str(message.content) for message in state["messages"])
    return [HumanMessage(f"{word}: {text}")]


async def draft(state: MessagesState):
    return {"messages": [await policy().ainvoke(request("draft", state))]}


def finish(state: MessagesState):
    try:
        return {"messages": [policy().invoke(request("finish", state))]}
    except Exception:  # a refusal of the budget must not get here
        return {"messages": [HumanMessage("I give up: 42")]}


builder = StateGraph(MessagesState).add_node("draft", draft).add_node("finish", finish)
graph = builder.add_edge(START, "draft").add_edge("draft", "finish").compile()
"""
OWN = """
from langchain_core.language_models import ParrotFakeChatModel

OWN = ParrotFakeChatModel()
"""
JUDGE = """
def judge(text, task):
    if text == "42" and "Task 3" in task.prompt:
        raise ValueError("the judge does not answer")
    return float(text == "42")
"""
TASKS = 8
A_CALL = 8
"""Tokens that the server reports for a call."""


def answer(body: dict[str, Any]) -> str:
    """Answer of the server: the model `strong` drafts the right number, and each model copies the
    last number when it finishes.
    """
    text = str(body["messages"][-1]["content"])
    if text.startswith("draft"):
        return "42" if body["model"] == "strong" else "41"
    return re.findall("[0-9]+", text)[-1]


def slow(body: dict[str, Any]) -> str:
    time.sleep(0.05)
    return answer(body)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ProviderServer, Path]]:
    """Server, and a folder with a graph, its tasks, and a run of the model `weak`."""
    folder = tmp_path_factory.mktemp("recorded")
    with ProviderServer(text=answer) as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "k")
        patch.setenv("OPENAI_BASE_URL", f"{running.url}/v1")
        patch.chdir(folder)
        Path("langchain").mkdir()
        Path("langchain/__init__.py").touch()
        Path("langchain/chat_models.py").write_text(LANGCHAIN)
        patch.syspath_prepend(folder)
        Path("own.py").write_text(GRAPH)
        rows = [{"question": f"Task {number}", "answer": "42"} for number in range(TASKS)]
        Path("tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        words = ["--tasks", "tasks.jsonl", "--rewards", "answer:last_number", "--out", "base"]
        words += ["--policy", "openai:weak", "--max-tokens", "500", "--graph", "./own.py:graph"]
        assert main(["eval", *words]) == 0
        assert len(running.asked) == 2 * TASKS
        yield running, folder


@pytest.fixture
def server(recorded: tuple[ProviderServer, Path], hrm: Command) -> ProviderServer:
    """Server that was asked nothing, and a copy of the run in the folder `base`."""
    running, folder = recorded
    shutil.copytree(folder, Path.cwd(), dirs_exist_ok=True)
    running.asked.clear()
    running.text = answer
    return running


def repeats(server: ProviderServer) -> int:
    """Number of requests that were sent before."""
    keys = Counter(json.dumps([each["model"], each["messages"]]) for each in server.asked)
    return sum(keys.values()) - len(keys)


def roles(hrm: Command, *words: str) -> dict[str, Any]:
    return hrm("roles", "base", "--try", "openai:strong", *words, "--json").json


def test_only_what_the_swap_changes_is_asked(server: ProviderServer, hrm: Command) -> None:
    told = hrm("roles", "base", "--try", "openai:strong", "--price", "strong=1,2", "--all")
    assert told.code == 0 and "no model of this name" not in told.err
    assert "Give draft the bigger model: policy(model='openai:strong') in its node" in told.out
    # draft and the changed finish; finish alone; both together
    models = Counter(each["model"] for each in server.asked)
    assert models == {"strong": 4 * TASKS, "weak": TASKS}
    server.asked.clear()
    found = roles(hrm, "--price", "strong=1,2", "--all")
    assert server.asked == []
    rows = {row["role"]: row for row in found["roles"]}
    assert list(rows) == ["draft", "finish", "all"]
    gains = {role: row["comparison"]["difference"]["value"] for role, row in rows.items()}
    assert gains == {"draft": 1, "finish": 0, "all": 1}
    assert rows["draft"]["asked"] == {"read": 40, "sampled": 24, "cost": pytest.approx(88e-6)}
    assert rows["draft"]["asked_others"]["sampled"] == 24
    assert rows["finish"]["asked_others"]["sampled"] == 0
    assert found["best"] == "draft" and found["tasks"] == TASKS and found["unjudged_runs"] == 0
    # the recorded runs are read without their calls
    compared = rows["draft"]["comparison"]
    assert not {"sampled_tokens", "tool_errors"} & (compared.keys() | compared["a"].keys())
    told = hrm("roles", "base", "--try", "openai:strong", "--price", "strnog=1,2", "--all")
    assert "--price strnog: no model of this name was asked. Asked: strong, weak." in told.err
    config = Path("base-roles/config.toml")
    assert config.read_text().count('weights = "; "') == 1
    config.write_text(config.read_text().replace('weights = "; "', 'weights = "model 1 2; "'))
    told = hrm("resume", "base-roles")
    assert told.code == 2 and "have changed since base-roles was begun" in told.err


def test_a_swap_that_cannot_be_judged_is_left_out_on_both_sides(
    server: ProviderServer, hrm: Command
) -> None:
    Path("judge.py").write_text(JUDGE)
    config = Path("base/config.toml")
    config.write_text(config.read_text().replace("answer:last_number", "./judge.py:judge"))
    found = roles(hrm)
    assert (found["tasks"], found["unjudged_runs"]) == (TASKS - 1, 1)
    assert found["roles"][0]["comparison"]["difference"]["value"] == 1
    Path("strict.py").write_text(JUDGE.replace("Task 3", "Task"))
    config.write_text(config.read_text().replace("judge.py", "strict.py"))
    told = hrm("roles", "base", "--try", "openai:strong", "--out", "anew")
    assert told.code == 2 and "None of 8 runs has swaps that could be judged" in told.err


@pytest.mark.parametrize(
    ("budget", "prices", "cost"),
    [
        ("720tokens", (), A_CALL),
        ("0.00072", ("--price", "strong=1,1", "--price", "weak=1,1"), A_CALL / 1e6),
    ],
)
def test_a_budget_is_never_exceeded(
    budget: str, prices: tuple[str, ...], cost: float, server: ProviderServer, hrm: Command
) -> None:
    words = ("--budget", budget, *prices)
    found = roles(hrm, *words)
    limit = float(budget.removesuffix("tokens"))
    # the next request could take 500 tokens and its prompt
    assert limit - 700 * cost / A_CALL < len(server.asked) * cost <= limit
    assert found["budget_used_up"] and 0 < found["tasks"] < TASKS
    assert found["runs"] == found["tasks"]
    order = [re.findall("Task [0-9]+", str(each["messages"]))[0] for each in server.asked]
    assert len([*groupby(order)]) == len(
        set(order)
    )  # the swaps of a run end before those of the next begin
    told = hrm("roles", "base", "--try", "openai:strong", *words)
    assert f"the budget of {budget} does not suffice for more" in " ".join(told.out.split())
    whole = roles(hrm, *prices)
    assert whole["tasks"] == TASKS and not whole["budget_used_up"]
    assert whole["roles"][0]["comparison"]["difference"]["value"] == 1
    assert len(server.asked) == 3 * TASKS and repeats(server) == 0


def test_a_provider_that_fails_ends_the_command_and_nothing_is_asked_twice(
    server: ProviderServer, hrm: Command
) -> None:
    def failing(body: dict[str, Any]) -> str:
        if len(server.asked) > 12 and "draft" in body["messages"][-1]["content"]:
            lost.append(body)
            raise ConnectionError
        return answer(body)

    lost: list[dict[str, Any]] = []
    server.text = failing
    words = ("--budget", "100000tokens", "--concurrency", "2")
    told = hrm("roles", "base", "--try", "openai:strong", *words)
    assert told.code == 2 and "gave no answer" in told.err and len(lost) <= 2
    server.text = answer
    found = roles(hrm, *words)
    assert found["tasks"] == TASKS
    # it is not known what a request without an answer has cost, so that it counts as reserved
    assert found["asked"]["sampled"] == 3 * 3 * TASKS + 500 * len(lost)
    for each in lost:
        server.asked.remove(each)
    assert repeats(server) == 0 and len(server.asked) == 3 * TASKS


@pytest.mark.parametrize(
    ("before", "after", "budget", "error"),
    [
        ("def finish", "async def finish", "900tokens", "blocks the event loop"),
        ("await policy().ainvoke", "policy().invoke", "20tokens", "does not suffice"),
        ("policy().invoke", "OWN.invoke", "9000tokens", "a model of its own"),
    ],
)
def test_a_request_that_cannot_wait_ends_the_run_without_a_result(
    before: str, after: str, budget: str, error: str, server: ProviderServer, hrm: Command
) -> None:
    text = GRAPH.replace(before, after)
    Path("own.py").write_text(OWN + text)
    server.text = slow
    words = ("--budget", budget)
    told = hrm("roles", "base", "--try", "openai:strong", *words)
    assert told.code == 2 and error in " ".join(told.err.split())
    if Path("base-roles/store.db").exists():
        with open_store(Path("base-roles/store.db"), read_only=True) as store:
            ended = store.journal.headers("status != ?", ("running",))
            assert not any("give up" in str(each.answer) for each in ended)


@pytest.mark.slow
def test_a_killed_command_asks_nothing_twice(server: ProviderServer, hrm: Command) -> None:
    server.text = slow
    words = ("roles", "base", "--try", "openai:strong", "--concurrency", "1")
    killed = subprocess.Popen([sys.executable, "-m", "hrm_agent", *words])
    while len(server.asked) < 10:
        assert killed.poll() is None
        time.sleep(0.01)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    under_way = server.asked[-1]
    server.text = answer
    assert hrm("resume", "base-roles", "--json").json["tasks"] == TASKS
    if server.asked.count(under_way) > 1:
        server.asked.remove(under_way)
    assert repeats(server) == 0


def test_no_role_gains(server: ProviderServer, hrm: Command) -> None:
    told = hrm("roles", "base", "--try", "openai:weaker")
    assert told.code == 1 and "No role gains: no interval lies clearly above 0." in told.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--try", "openai:weak"), "openai:weak is the policy of"),
        (("--try", "openai:strong", "--budget", "much"), "'much' is not an amount"),
        (("--try", "openai:strong", "--budget", "0"), "'0' is not an amount"),
        (("--try", "openai:strong", "--budget", "1"), "The price of strong is not known"),
        (
            ("--try", "openai:strong", "--budget", "20tokens"),
            "does not suffice for the swaps of one run",
        ),
        (("--try", "openai:strong", "--concurrency", "0"), "--concurrency 0 is below 1"),
    ],
)
def test_a_mistake_is_reported(
    words: tuple[str, ...], said: str, server: ProviderServer, hrm: Command
) -> None:
    told = hrm("roles", "base", *words)
    assert told.code == 2 and said in " ".join(told.err.split())
    assert server.asked == []


def test_what_is_no_run_is_reported(hrm: Command) -> None:
    Path("empty").mkdir()
    told = hrm("roles", "empty", "--try", "builtin:trained")
    assert told.code == 2 and "it has no config.toml" in told.err
    Path("empty/config.toml").touch()
    told = hrm("roles", "empty/typo", "--try", "builtin:trained")
    assert told.code == 2 and "empty/typo is missing." in told.err
