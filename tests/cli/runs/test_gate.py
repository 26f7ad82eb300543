"""`hrm-agent gate`: what is asked, the verdict, the budget, and what earlier starts have asked."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.cli.main import main
from hrm_agent.store import open_store
from tests.cli.conftest import Command
from tests.support.serving.providers import LANGCHAIN, ProviderServer

GRAPH = """
from pathlib import Path

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

from hrm_agent.models import policy

LOG = "tools.log"
OWN = "small"


def prompt(name, text):
    "The prompt of a node, which a file may change."
    file = Path(f"{name}.txt")
    return f"{file.read_text() if file.exists() else name}: {text}"


@tool
def lookup(number: int) -> str:
    "Look a number up."
    with open(LOG, "a") as file:
        file.write(f"{number}\\n")
    return f"found {number}"


async def draft(state: MessagesState):
    return {"messages": [await policy().ainvoke([HumanMessage(prompt("draft", state["messages"][0].text))])]}


async def search(state: MessagesState):
    call = {"name": "lookup", "args": {"number": 7}, "id": "a", "type": "tool_call"}
    return {"messages": [HumanMessage((await lookup.ainvoke(call)).text)]}


async def ask(state: MessagesState):
    model = ChatOpenAI(model=OWN, max_tokens=20, max_retries=0)
    return {"messages": [await model.ainvoke([HumanMessage(prompt("ask", state["messages"][0].text))])]}


async def finish(state: MessagesState):
    said = state["messages"][1].text
    return {"messages": [await policy().ainvoke([HumanMessage(prompt("finish", said))])]}


builder = StateGraph(MessagesState).add_node("draft", draft).add_node("search", search)
builder.add_node("ask", ask).add_node("finish", finish).add_edge(START, "draft")
builder.add_edge("draft", "search").add_edge("search", "ask").add_edge("ask", "finish")
graph = builder.compile()
"""
TASKS = 12
A_CALL = 8
"""Tokens that the server reports for a call."""
CALLS = 3


def answer(body: dict[str, Any]) -> str:
    """Answer of the server. A draft is right. `badly` makes a wrong end of it."""
    text = str(body["messages"][-1]["content"])
    return "41" if "badly" in text else "42"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ProviderServer, Path]]:
    """Server, and a folder with a graph and its run."""
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
        Path("judge.py").write_text("def judge(text):\n    raise ValueError('no')\n")
        rows = [{"question": f"Task {number}", "answer": "42"} for number in range(TASKS)]
        Path("tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        words = ["--tasks", "tasks.jsonl", "--rewards", "answer:last_number", "--out", "base"]
        words += ["--policy", "openai:recorded", "--max-tokens", "50", "--graph", "./own.py:graph"]
        assert main(["eval", *words]) == 0
        assert len(running.asked) == CALLS * TASKS
        yield running, folder


@pytest.fixture
def server(recorded: tuple[ProviderServer, Path], hrm: Command) -> ProviderServer:
    """Server that was asked nothing, and a copy of the run in the folder `base`."""
    running, folder = recorded
    shutil.copytree(folder, Path.cwd(), dirs_exist_ok=True)
    Path("tools.log").unlink()
    running.asked.clear()
    running.text = answer
    return running


def change(old: str, new: str, name: str = "new.py") -> None:
    """Write a changed agent."""
    assert old in GRAPH
    Path(name).write_text(GRAPH.replace(old, new))


def gate(hrm: Command, *words: str, code: int = 0) -> dict[str, Any]:
    found = hrm("gate", "base", *words, "--json")
    assert found.code == code, found.err
    return found.json


def asked(server: ProviderServer) -> Counter[str]:
    """Number of requests by the first word of their text."""
    texts = (str(each["messages"][-1]["content"]) for each in server.asked)
    return Counter(text.partition(":")[0].split()[0] for text in texts)


def test_an_unchanged_agent_asks_nothing_and_loads_no_policy(
    server: ProviderServer, hrm: Command
) -> None:
    Path("langchain/chat_models.py").write_text("raise ImportError")
    found = gate(hrm, "--fail-on", "undecided")
    assert found["verdict"] == "equal" and found["unchanged_runs"] == TASKS
    assert "all 12 runs repeat as recorded, and nothing was asked" in found["sentence"]
    assert not server.asked and not Path("tools.log").exists()
    assert hrm("gate", "base/store.db", "--json").json["old"] == 1  # has the rubric of its folder
    # a run without a rubric is scored by the verifiers of its tasks, which read a box
    config = Path("base/config.toml")
    assert 'rewards = "answer:last_number"' in config.read_text()
    config.write_text(config.read_text().replace('"answer:last_number"', '"none"'))
    found = gate(hrm)
    assert (found["verdict"], found["old"]) == ("equal", 0)


def test_only_what_follows_a_change_is_asked(server: ProviderServer, hrm: Command) -> None:
    Path("finish.txt").write_text("finish badly")
    expected = gate(hrm, "--dry-run", "--price", "recorded=1,2")
    assert expected["requests"] == expected["differing_runs"] == TASKS and not server.asked
    assert expected["differences"] == [
        {"role": "finish", "words": "finish sends another request", "runs": TASKS}
    ]
    assert expected["cost"] == pytest.approx(TASKS * (5 + 3 * 2) / 1e6)
    found = gate(hrm, "--report", "report.md", code=1)
    count = found["asked"]["requests"]
    assert found["verdict"] == "worse" and found["stopped_early"] and count < TASKS
    assert asked(server) == {"finish": count} and not Path("tools.log").exists()
    assert len(found["worse"]) == found["runs"] == count
    assert "+finish badly: 42" in found["worse"][0]["diff"]
    report = Path("report.md").read_text()
    assert "Agent gate: worse" in report and "+finish badly: 42" in report
    (saved,) = Path("base/analyses").glob("gate-*.json")
    assert json.loads(saved.read_text())["result"]["verdict"] == "worse"
    # started again
    again = gate(hrm, code=1)
    assert len(server.asked) == count
    assert [each["diff"] for each in again["worse"]] == [each["diff"] for each in found["worse"]]
    # changed once more: the answers of the earlier version are those of other requests
    Path("finish.txt").write_text("finish well")
    found = gate(hrm, "--margin", "0.3")
    assert found["verdict"] == "equal" and found["new"] == 1 and len(server.asked) > count


def test_a_budget_is_kept_and_nothing_is_asked_twice(server: ProviderServer, hrm: Command) -> None:
    Path("draft.txt").write_text("draft anew")
    new = ("--out", "gate", "--samples", "2")
    failed = hrm("gate", "base", *new, "--budget", "10tokens")
    assert failed.code == 2 and "does not suffice for one task" in failed.err
    assert not server.asked
    limit = 250
    first = gate(hrm, *new, "--budget", f"{limit}tokens")
    assert first["budget_used_up"] and first["verdict"] == "undecided"
    assert 0 < len(server.asked) * A_CALL <= limit
    assert hrm("resume", "gate", "--json").code == 0
    found = gate(hrm, *new)
    requests = [json.dumps([each["model"], each["messages"]]) for each in server.asked]
    assert found["asked"]["requests"] == len(requests)
    # each sample asks for a draft, and later requests are on record
    assert asked(server) == {"draft": 2 * TASKS}
    assert set(Counter(requests).values()) == {2}


def test_another_model_of_the_graph_is_asked(server: ProviderServer, hrm: Command) -> None:
    change('OWN = "small"', 'OWN = "large"')
    found = gate(hrm, "--graph", "./new.py:graph", "--budget", "100000tokens")
    assert {each["model"] for each in server.asked} == {"large"}
    assert asked(server) == {"ask": found["asked"]["requests"]}
    more = "temperature=0.5, seed=3, extra_body={'a': 1}, default_query={'a': '1'}, timeout=9"
    change("max_tokens=20", f"max_tokens=20, {more}", "warm.py")
    words = gate(hrm, "--graph", "./warm.py:graph", "--dry-run")["differences"]
    names = "default_query, extra_body, seed, temperature"
    assert words == [
        {"role": "ask", "words": f"ask asks with other options ({names})", "runs": TASKS}
    ]
    change("max_tokens=20", "base_url='http://127.0.0.1:9/v1', max_tokens=21", "away.py")
    told = hrm("gate", "base", "--graph", "./away.py:graph")
    assert told.code == 2 and "small gave no answer" in told.err


RUBRICS = """
def found(state):
    return float(state["messages"][2].text == "found 7")


def called(tool_calls):
    return float([each.name for each in tool_calls] == ["lookup"])
"""


def test_unchanged_runs_have_the_recorded_tool_calls_and_state(
    server: ProviderServer, hrm: Command
) -> None:
    Path("rubrics.py").write_text(RUBRICS)
    change("found {number}", "no {number}")
    new = ("--graph", "./new.py:graph", "--tools", "run", "--rewards", "./rubrics.py:found")
    assert gate(hrm, *new, code=1)["new"] == 0
    change("(await lookup.ainvoke(call)).text", "'found 7'", "none.py")
    new = ("--graph", "./none.py:graph", "--rewards", "./rubrics.py:called")
    found = gate(hrm, *new, code=1)
    assert (found["old"], found["new"], found["unchanged_runs"]) == (1, 0, 0)
    assert {each["words"] for each in found["expected"]["differences"]} == {
        "ends with other tool calls"
    }
    found = gate(hrm, *new[:2])
    assert "have the recorded requests and scores, and nothing was asked" in found["sentence"]
    assert not server.asked


def test_a_refusal_that_a_node_catches_is_no_end(server: ProviderServer, hrm: Command) -> None:
    asks = 'return {"messages": [await model.ainvoke('
    caught = "return {'messages': [HumanMessage('failed')]}"
    line = next(each for each in GRAPH.splitlines() if asks in each).strip()
    blocking = line.replace("await model.ainvoke", "model.invoke")
    node = GRAPH.replace(line, f"try: {blocking}\n    except BaseException: {caught}")
    Path("new.py").write_text(node.replace("async def ask", "def ask"))
    Path("ask.txt").write_text("ask anew")
    found = gate(hrm, "--graph", "./new.py:graph")
    assert asked(server) == {"ask": found["runs"]} and found["new"] == 1


def test_options_and_weights_of_the_policy(
    server: ProviderServer, hrm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    change("await policy().ainvoke(", 'HumanMessage("42") if OWN else (')
    for option in ("--temperature", "--max-tokens"):
        told = hrm("gate", "base", "--graph", "./new.py:graph", option, "1")
        assert told.code == 2 and f"{option} has no effect" in told.err
    now = time.time()
    monkeypatch.setattr("hrm_agent.cli.runs.gate_runs.time_of_weights", lambda _: now)
    (words,) = gate(hrm, "--dry-run")["differences"]
    assert words["words"] == "draft asks openai:recorded, whose files have changed since"
    assert not server.asked


def test_a_tool_that_asks_a_model_runs_again(server: ProviderServer, hrm: Command) -> None:
    asks = 'return (await ChatOpenAI(model="small").ainvoke(prompt("expert", "7"))).text'
    text = GRAPH.replace('return f"found {number}"', asks).replace("def lookup", "async def lookup")
    Path("experts.py").write_text(text)
    words = ("--tasks", "tasks.jsonl", "--count", "2", "--rewards", "answer:last_number")
    policy = ("--policy", "openai:recorded", "--max-tokens", "50", "--graph", "./experts.py:graph")
    assert hrm("eval", *words, *policy, "--out", "experts").code == 0
    server.asked.clear()
    found = hrm("gate", "experts", "--json").json
    assert (found["verdict"], found["unchanged_runs"]) == ("equal", 2) and not server.asked
    Path("expert.txt").write_text("expert, anew")
    (words,) = hrm("gate", "experts", "--dry-run", "--json").json["differences"]
    assert words == {"role": "search", "words": "search sends another request", "runs": 2}


def test_the_rule_for_tools(server: ProviderServer, hrm: Command) -> None:
    change('{"number": 7}', '{"number": 8}')
    told = hrm("gate", "base", "--graph", "./new.py:graph", "--tools", "refuse")
    assert told.code == 2 and "lookup has no recorded result" in told.err
    assert not Path("tools.log").exists()
    found = gate(hrm, "--graph", "./new.py:graph")
    # the graph does not read the result
    assert found["verdict"] == "equal" and not server.asked
    assert Path("tools.log").read_text().split() == ["8"] * TASKS
    # the tool may have been mended since
    assert gate(hrm, "--graph", "./new.py:graph")["verdict"] == "equal"
    assert Path("tools.log").read_text().split() == ["8"] * 2 * TASKS
    found = gate(hrm, "--tools", "run")
    assert found["verdict"] == "equal" and not server.asked
    assert Path("tools.log").read_text().split().count("7") == TASKS


def test_an_agent_that_fails_is_worse(server: ProviderServer, hrm: Command) -> None:
    change("said = state", "raise ValueError('broken'); said = state")
    found = gate(hrm, "--graph", "./new.py:graph", code=1)
    assert found["new"] == 0 and found["failed"] == {"ValueError: broken": found["runs"]}
    assert "finish" not in asked(server)


def test_runs_that_the_new_agent_leaves_without_a_score_give_no_verdict(
    server: ProviderServer, hrm: Command
) -> None:
    ask = "from langgraph.types import interrupt\n    if state['messages'][0].text[-1] in '13579':"
    change("said = state", f"{ask}\n        interrupt('go on?')\n    said = state")
    found = gate(hrm, "--graph", "./new.py:graph")
    assert (found["verdict"], found["runs"]) == ("undecided", TASKS // 2)
    assert {why: len(runs) for why, runs in found["without_score"].items()} == {
        "it waits for an answer of a person": TASKS // 2
    }
    assert found["difference"]["low"] < -0.5 and found["difference"]["value"] == -0.25
    assert not server.asked


def test_an_outage_is_no_result_of_either_side(server: ProviderServer, hrm: Command) -> None:
    # the graph catches the error
    begin = "    try:\n        return {'messages': [await model.ainvoke([HumanMessage(text)])]}\n"
    caught = (
        f"{begin}    except Exception:\n        return {{'messages': [HumanMessage('failed')]}}"
    )
    text = 'prompt("ask", state["messages"][0].text)'
    was = f'    return {{"messages": [await model.ainvoke([HumanMessage({text})])]}}'
    where = "'http://127.0.0.1:9/v1' if text[-1] in '12' else None"
    assert was in GRAPH and "max_retries=0)" in GRAPH
    changed = GRAPH.replace(was, caught).replace(
        "max_retries=0)", f"max_retries=0, base_url={where})"
    )
    changed = changed.replace("    model = Chat", f"    text = {text}\n    model = Chat")
    Path("away.py").write_text(changed.replace('OWN = "small"', 'OWN = "large"'))
    told = hrm("gate", "base", "--graph", "./away.py:graph")
    assert told.code == 2 and "large gave no answer" in told.err
    words = ("--tasks", "tasks.jsonl", "--rewards", "answer:last_number", "--out", "outage")
    policy = ("--policy", "openai:recorded", "--max-tokens", "50", "--count", "4")
    assert hrm("eval", *words, *policy, "--graph", "./away.py:graph").code == 0
    found = hrm("gate", "outage", "--dry-run", "--json").json
    ((why, runs),) = found["left_out"].items()
    assert "a model failed to answer" in why and 0 < len(runs) == 4 - found["runs"] < 4


RUBRIC = """
def right(text):
    return float(open("score.txt").read())
"""


def test_few_runs_of_an_agent_that_breaks(
    server: ProviderServer, hrm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for question in ("Task 1", "Task 1", "Task 2"):
        told = hrm("run", question, "--graph", "./own.py:graph", "--policy", "openai:recorded")
        assert told.code == 0, told.err
    Path("rubric.py").write_text(RUBRIC)
    words = ("gate", "runs/store.db", "--rewards", "./rubric.py:right", "--out", "gate", "--json")
    for score in (0.5, 1):  # the score depends on more than the rubric's code
        Path("score.txt").write_text(str(score))
        assert hrm(*words).json["old"] == score
    monkeypatch.setenv("OTHER_API_KEY", "not-to-be-shown")
    change("said = state", "import os; raise ValueError(os.environ['OTHER_API_KEY']); said = state")
    changed = (*words[:-3], "--graph", "./new.py:graph", "--report", "report.md")
    found = hrm(*changed)
    # equal questions are one task, and two tasks are too few for "worse"
    assert "undecided" in found.out and found.code == 1, found.err
    report = Path("report.md").read_text()
    assert "ValueError: \\*\\*\\*" in report
    saved = "".join(each.read_text() for each in Path("runs/analyses").glob("gate-*.json"))
    assert '"planned_tasks": 2' in saved.replace('":2', '": 2')
    assert "not-to-be-shown" not in found.out + found.err + report + saved
    (config,) = Path("runs").glob("*-gate-*/config.toml")
    assert str(Path("new.py").absolute()) in config.read_text()  # for `resume` in another folder


ASKS = """
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import MemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt


def person(state):
    return {"messages": [AIMessage(interrupt("ok?"))]}


builder = StateGraph(MessagesState).add_node("person", person).add_edge(START, "person")
graph = builder.compile(checkpointer=MemorySaver())
if __name__ == "__main__":
    config = {"configurable": {"thread_id": "a"}}
    graph.invoke({"messages": [("user", "Task")]}, config)
    graph.invoke(Command(resume="yes"), config)
"""


def test_a_run_that_asked_a_person_is_left_out(hrm: Command) -> None:
    Path("asks.py").write_text(ASKS)
    assert hrm("record", "--store", "asks.db", "--", sys.executable, "asks.py").code == 0
    told = hrm("gate", "asks.db", "--rewards", "answer:last_number")
    assert told.code == 2 and "1: asked a person" in told.err


def test_a_password_is_refused(hrm: Command) -> None:
    for where in ("postgresql://bob:hunter2@host/db", "postgresql://host/db?password=hunter2"):
        told = hrm("gate", where, "--out", "gate")
        assert told.code == 2 and "PGPASSWORD" in told.err and "hunter2" not in told.err
        assert not Path("gate").exists()


BAD = [
    (("--policy", "openai:recorded", "--stand-in", "--budget", "0"), "is not an amount"),
    (("--out", "base"), "base has the recorded runs"),
    (("--rewards", "./own.py:nothing"), "nothing"),
    (("--graph", "./own.py:nothing"), "Graphs found there"),
    (("--rewards", "./judge.py:judge"), "None of 12 recorded runs can be judged"),
    (("--samples", "0"), "below 1"),
    (("--report", "none/r.md"), "cannot be written"),
    (("--report", "r" * 300), "cannot be written"),
    (("--report", ""), "--report is empty"),
    (("--out", "base/sub"), "inside the recorded folder"),
    (("--run", "none"), "no run of run"),
    (("--rewards", "answer:last_number", "--margin", "2"), "--margin"),
]


@pytest.mark.parametrize(("words", "said"), BAD, ids=[said for _, said in BAD])
def test_a_mistake_leaves_nothing_behind(
    server: ProviderServer, hrm: Command, words: tuple[str, ...], said: str
) -> None:
    before = sorted(Path.cwd().rglob("*"))
    told = hrm("gate", "base", *words)
    assert told.code == 2 and said in told.err and "Traceback" not in told.err
    assert not server.asked
    left = {path for path in Path.cwd().rglob("*") if "__pycache__" not in str(path)} - {*before}
    assert left == set()


@pytest.mark.slow
def test_a_killed_gate_asks_nothing_twice(server: ProviderServer, hrm: Command) -> None:
    def slow(body: dict[str, Any]) -> str:
        time.sleep(0.05)
        return answer(body)

    server.text = slow
    Path("draft.txt").write_text("draft anew")
    words = ["gate", "base", "--out", "gate", "--concurrency", "1"]
    command = [sys.executable, "-m", "hrm_agent.cli.main", *words]
    running = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(Path.cwd())})
    while len(server.asked) < 4:
        assert running.poll() is None
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    found = gate(hrm, *words[2:])
    requests = Counter(json.dumps(each["messages"]) for each in server.asked)
    assert len(requests) == found["runs"]
    # the request that was under way at the kill is asked again
    assert sum(requests.values()) <= len(requests) + 1
    with open_store("gate/store.db", read_only=True) as store:
        assert len(store.journal.headers()) > found["runs"]
