"""`hrm-agent resume`: runs that stopped before their graph had ended, and the options of a resumed
run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.runtime.time_travel.fork import fork
from hrm_agent.store import StoreSaver, open_store
from tests.cli.conftest import Command

STOPPING = '''
import asyncio
import operator
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, TypedDict

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.config import get_config
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.runtime import Runtime
from langgraph.types import interrupt

from hrm_agent.errors import ModelError


def note(what):
    with Path("calls.log").open("a") as log:
        log.write(what + "\\n")


def away(what):
    note(what)
    if not Path("back").exists():
        raise ConnectionError("the provider is away")
    return what


def beside_is_kept():
    """Wait until the task beside this one is on record: LangGraph cancels it where this one fails before."""
    while not Path(get_config()["configurable"]["thread_id"].replace("/", "-")).exists():
        time.sleep(0.01)


class State(TypedDict, total=False):
    task: str
    found: Annotated[list[str], operator.add]
    answer: str


def once(state):
    note("once")
    return {"found": ["once"]}


def often(state):
    beside_is_kept()
    return {"found": [away("often")]}


def join(state):
    note("join")
    return {"answer": " ".join(state["found"])}


def joined(second):
    builder = StateGraph(State).add_node("once", once).add_node("often", second).add_node("join", join)
    builder.add_edge(START, "once").add_edge(START, "often").add_edge(["once", "often"], "join")
    return builder.compile()


beside = joined(often)
nested = joined(StateGraph(State).add_node("inner", often).add_edge(START, "inner").compile())


@tool
def search(query: str) -> str:
    """Searches."""
    return away("often")


def tells(state):
    return {"answer": " ".join(m.text for m in state["messages"] if m.type == "tool")}


def calls(state):
    note("once")
    asked = [{"name": "search", "args": {"query": "whales"}, "id": "1"}]
    return {"messages": [AIMessage("", tool_calls=asked)]}


class Talk(MessagesState):
    answer: str


tools = StateGraph(Talk).add_node("calls", calls).add_node("tools", ToolNode([search], handle_tool_errors=False))
tools = tools.add_node("tells", tells).add_edge(START, "calls").add_edge("calls", "tools").add_edge("tools", "tells")
tools = tools.compile()


@task
def first():
    note("once")
    return "once"


@task
def second():
    beside_is_kept()
    return away("often")


@entrypoint()
def workflow(question: str) -> str:
    return f"{first().result()} {second().result()}"


def say(state):
    return {"messages": [AIMessage(away(state["messages"][-1].text))]}


talk = StateGraph(MessagesState).add_node("say", say).add_edge(START, "say").compile()


class Count(TypedDict, total=False):
    task: str
    answer: str
    count: int


def step(state):
    note("step")
    count = state.get("count", 0) + 1
    return {"count": count, "answer": str(count)}


counts = StateGraph(Count).add_node("step", step).add_edge(START, "step")
counts = counts.add_conditional_edges("step", lambda state: "step" if state["count"] < 7 else "__end__").compile()


@task
def human(what):
    return f"{what} {interrupt(what)}"


@entrypoint()
def inner(question: str) -> str:
    return human(question).result()


@entrypoint()
def outer(question: str) -> str:
    return "said: " + inner.invoke(question)


class Topic(TypedDict, total=False):
    topic: str
    answer: str


def write(state):
    return {"answer": f"on {state['topic']}: {interrupt('tone?')}"}


class Tone(Enum):
    CALM = "calm"
    LOUD = "loud"


@dataclass
class Options:
    tone: Tone
    words: tuple[str, ...] = ()
    llm: object = None


client = asyncio.Lock()
"""Bound to the event loop in which somebody first waits for it, as the connections of a model's client are."""


async def leaves(state):
    """A problem that a person can mend leaves its thread under way, as a killed process does."""
    if not Path("back").exists():
        raise ModelError("the provider is away")
    if state["task"] in ("one", "two"):
        async with client:
            waiting = asyncio.ensure_future(client.acquire())
            await asyncio.sleep(0)
        await waiting
        client.release()
    if state["task"] == "bad":
        raise ValueError("no luck")
    if state["task"] == "ask":
        interrupt("fine?")
    return {"answer": f"done {state['task']}"}


left = StateGraph(State).add_node("leaves", leaves).add_edge(START, "leaves").compile()


def told(state, config, runtime: Runtime[Options]):
    given = config["configurable"]
    fine = interrupt("fine?")
    tone = runtime.context.tone.name if runtime.context else "none"
    words = " ".join(runtime.context.words) if runtime.context else ""
    shown = (given.get("model", "default"), "key" if given.get("api_key") else "no key", tone, words, fine)
    return {"answer": ", ".join(shown)}


options = StateGraph(State, context_schema=Options).add_node("told", told).add_edge(START, "told").compile()
of_topics = StateGraph(Topic).add_node("write", write).add_edge(START, "write")
topics = of_topics.compile()
'''


@pytest.fixture
def stopping(hrm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the graphs. A file named after a thread indicates that the output of `once` is on
    record.
    """
    (tmp_path / "stopping.py").write_text(STOPPING)
    put = StoreSaver.aput_writes

    async def told(saver: StoreSaver, config: Any, writes: Any, *place: Any) -> None:
        await put(saver, config, writes, *place)
        if any(value in ("once", ["once"]) for _, value in writes):
            (tmp_path / config["configurable"]["thread_id"].replace("/", "-")).touch()

    monkeypatch.setattr(StoreSaver, "aput_writes", told)
    return tmp_path


def noted(folder: Path) -> list[str]:
    return (folder / "calls.log").read_text().split()


@pytest.mark.parametrize("again", [("resume", "t"), ("run", "go", "--thread", "t")])
@pytest.mark.parametrize("graph", ["beside", "nested", "tools", "workflow"])
def test_a_run_that_failed_continues_with_what_had_failed(
    graph: str, again: tuple[str, ...], stopping: Path, hrm: Command
) -> None:
    words = ("--graph", f"./stopping.py:{graph}")
    failed = hrm("run", "go", "--thread", "t", *words)
    assert (
        failed.code == 1
        and "the provider is away" in failed.out
        and "hrm-agent resume t" in failed.out
    )
    again = (*again, *words) if again[0] == "run" else again
    assert hrm(*again).code == 1, "it is still away"
    (stopping / "back").touch()
    done = hrm(*again)
    assert done.code == 0 and ("once" in done.out) is (graph != "tools")
    assert (noted(stopping).count("once"), noted(stopping).count("often")) == (1, 3)
    assert hrm("resume", "t").code == 0 and noted(stopping).count("often") == 3, "it has ended"
    assert hrm("replay", "t").code == 0


def test_a_run_that_met_the_limit_of_steps_continues(stopping: Path, hrm: Command) -> None:
    words = (
        "run",
        "go",
        "--thread",
        "t",
        "--graph",
        "./stopping.py:counts",
        "--recursion-limit",
        "2",
    )
    assert "recursion_limit" in hrm(*words).out
    assert "recursion_limit" in hrm("resume", "t").out
    assert hrm("resume", "t", "--json").lines[-1]["answer"] == "7"
    assert noted(stopping) == ["step"] * 7
    assert hrm("replay", "t").code == 0


def test_a_turn_that_failed_is_resumed_in_a_chat(stopping: Path, hrm: Command) -> None:
    words = ("chat", "--thread", "c", "--graph", "./stopping.py:talk", "--say")
    (stopping / "back").touch()
    assert hrm(*words, "one").code == 0
    (stopping / "back").unlink()
    failed = hrm(*words, "two")
    assert failed.code == 1 and "/resume" in failed.out
    (stopping / "back").touch()
    assert hrm(*words, "/resume", "--json").lines[-1]["answer"] == "two"
    assert "No turn is under way" in hrm(*words, "/resume").err
    assert noted(stopping) == ["one", "two", "two"]


def test_all_runs_of_a_choice_that_failed_continue(stopping: Path, hrm: Command) -> None:
    words = (
        "run",
        "go",
        "--thread",
        "t",
        "--graph",
        "./stopping.py:beside",
        "--mode",
        "majority",
        "--n",
        "2",
    )
    assert hrm(*words).code == 1
    (stopping / "back").touch()
    assert hrm("resume", "t", "--json").lines[-1]["answer"] in ("once often", "often once")
    assert (noted(stopping).count("once"), noted(stopping).count("often")) == (2, 4)


def test_a_question_of_a_nested_workflow_is_one_question(stopping: Path, hrm: Command) -> None:
    assert (
        hrm("run", "whales?", "--thread", "t", "--graph", "./stopping.py:outer").out.count("asks:")
        == 1
    )
    assert len(hrm("history", "t", "--json").json["moments"][-1]["interrupts"]) == 1
    assert (
        hrm("resume", "t", "--answer", "yes", "--json").lines[-1]["answer"] == "said: whales? yes"
    )
    assert hrm("replay", "t").code == 0


def test_a_thread_without_a_place_for_a_task_is_forked_and_answered(
    stopping: Path, hrm: Command
) -> None:
    from hrm_agent.runtime.execution.loading import load_graph
    from hrm_agent.store import open_store

    load_graph("./stopping.py:topics")
    import stopping as module  # pyright: ignore[reportMissingImports]

    with open_store("own.db") as store:
        graph = module.of_topics.compile(checkpointer=store.checkpointer)
        graph.invoke({"topic": "whales"}, {"configurable": {"thread_id": "w"}}, durability="sync")
    where = ("--store", "own.db")
    assert hrm("fork", "w", "--graph", "./stopping.py:topics", "--name", "x", *where).code == 0
    assert "hrm-agent resume x --answer VALUE" in hrm("resume", "x", *where).out
    assert (
        hrm("resume", "x", "--answer", "calm", "--json", *where).lines[-1]["answer"]
        == "on whales: calm"
    )


Given = Callable[..., None]


@pytest.fixture
def recorded(stopping: Path) -> Given:
    """Function that runs the graph `options` like a program, with options of its own, in the thread
    `t`.
    """
    from hrm_agent import record
    from hrm_agent.runtime.execution.loading import load_graph

    graph: Any = load_graph("./stopping.py:options")

    def run(context: dict[str, Any] | None = None, **configurable: Any) -> None:
        tone = {"tone": sys.modules[graph.context_schema.__module__].Tone.LOUD}
        made = graph.context_schema(**tone, **context) if context is not None else None
        with record("runs/store.db"):
            config: Any = {"configurable": {"thread_id": "t", **configurable}, "recursion_limit": 7}
            graph.invoke({"task": "go"}, config, context=made)

    return run


def test_what_a_program_gave_its_graph_is_given_again(recorded: Given, hrm: Command) -> None:
    recorded({"words": ("a", "b")}, model="theirs", none=None, of={"a": [1, None]})
    expected = "theirs, no key, LOUD, a b, yes"
    assert hrm("fork", "t", "--name", "f").code == 0
    for words in (("resume", "t"), ("resume", "f"), ("resume", "t", "--at", "last")):
        assert hrm(*words, "--answer", "yes", "--json").lines[-1]["answer"] == expected
    assert hrm("replay", "t").code == hrm("replay", "f").code == 0
    with open_store("runs/store.db") as store:
        assert store.journal.trajectory("t").task.metadata["configurable"] == {
            "model": "theirs",
            "none": None,
            "of": {"a": [1, None]},
        }
        assert "recursion_limit = 7" in str(store.options.read("t"))
        (again,) = fork(store, "t", "before:told", name="g")
        assert again.context == {"tone": "loud", "words": ["a", "b"], "llm": None}


def test_a_flag_goes_before_what_is_on_record(recorded: Given, hrm: Command) -> None:
    recorded({"words": ("a", "b")}, model="theirs", more=1)
    given = ("--config", "model=ours", "x=1", "--context", "tone=calm")
    assert (
        hrm("resume", "t", "--answer", "yes", *given, "--json").lines[-1]["answer"]
        == "ours, no key, CALM, a b, yes"
    )
    assert hrm("replay", "t").code == 0, "each part is replayed with what it was given"
    assert (
        hrm("replay", "t", *given).code
        == hrm("replay", "--check", "runs/store.db", *given).code
        == 0
    )
    forked = hrm(
        "fork", "t", "--at", "before:told", "--name", "f", "--config", "model=mine", "x=2", "--json"
    )
    assert forked.code == 0
    assert (
        hrm("resume", "f", "--answer", "no", "--json").lines[-1]["answer"]
        == "mine, no key, CALM, a b, no"
    )


@pytest.mark.parametrize(
    ("context", "configurable", "name", "reason", "again", "answer"),
    [
        (
            None,
            {"api_key": "sk-1"},
            "api_key",
            "named like a secret",
            ("--config", "api_key=sk-2"),
            "key, none, , yes",
        ),
        (
            None,
            {"model": len},
            "model",
            "type builtin_function",
            ("--config", "model=a"),
            "a, no key, none, , yes",
        ),
        (
            {"llm": len},
            {},
            "llm",
            "type builtin_function",
            ("--context", "llm=a"),
            "default, no key, LOUD, , yes",
        ),
    ],
)
def test_what_is_not_kept_is_asked_for(
    context: Any,
    configurable: Any,
    name: str,
    reason: str,
    again: tuple[str, ...],
    answer: str,
    recorded: Given,
    hrm: Command,
) -> None:
    recorded(context, **configurable)
    for words in (
        ("resume", "t", "--answer", "yes"),
        ("fork", "t", "--run"),
        ("chat", "--thread", "t", "--say", "x"),
    ):
        refused = hrm(*words)
        assert refused.code == 2, words
    refused = hrm("resume", "t", "--answer", "yes")
    assert (
        repr(name) in refused.err
        and reason in refused.err
        and f"{again[0]} {name}=VALUE" in refused.err
    )
    assert (
        hrm("resume", "t", "--answer", "yes", *again, "--json").lines[-1]["answer"].endswith(answer)
    )
    assert "sk-" not in str(hrm("show", "t", "--json")) + str(hrm("history", "t", "--json"))
    with open_store("runs/store.db") as store:
        assert (
            "sk-"
            not in str(store.options.read("t")) + store.journal.trajectory("t").model_dump_json()
        )


def test_a_context_that_is_not_given_is_none_where_its_class_needs_something(
    stopping: Path, hrm: Command
) -> None:
    words = ("--graph", "./stopping.py:options", "--thread", "t", "--config", "model=a", "other=b")
    assert hrm("run", "go", *words).code == 0
    assert (
        hrm("resume", "t", "--answer", "yes", "--json").lines[-1]["answer"]
        == "a, no key, none, , yes"
    )
    assert hrm("replay", "t").code == 0


def test_all_that_is_under_way_is_resumed_at_once(stopping: Path, hrm: Command) -> None:
    graph = ("--graph", "./stopping.py:left")
    for name in ("one", "bad", "held", "ask", "two"):
        assert hrm("run", name, "--thread", name, *graph).code == 2
    assert hrm("run", "x", "--thread", "asks", "--graph", "./stopping.py:options").code == 0
    assert hrm("fork", "one", "--name", "fork").code == 0
    (stopping / "back").touch()
    with open_store("runs/store.db") as store, store.lease("held"):
        done = hrm("resume", "--all")
        assert done.code == 1
        said = {line.split("  ")[0]: line for line in done.out.splitlines() if "  " in line[1:]}
        assert "completed (answer): done one" in said["one"] and "done two" in said["two"]
        assert "live process" in said["held"] and "not begun" in said["fork"]
        assert (
            "no luck" in said["bad"]
            and "resume ask --answer" in done.out
            and "resume asks --answer" in done.out
        )
        assert "6 threads were under way; 1 failed:\n  bad: ValueError: no luck" in done.out
        status = {t.thread_id: t.status.value for t in store.journal.headers()}
        assert (status["held"], status["fork"], status["ask"]) == (
            "running",
            "running",
            "truncated",
        )
    lines = hrm("resume", "--all", "--json").lines
    assert [(line["event"], line.get("thread_id") or line.get("thread")) for line in lines] == [
        ("end", "held"),
        ("skipped", "fork"),
        ("waiting", None),
        ("stopped", None),
    ]
    assert lines[-2]["threads"] == ["ask", "asks"] and lines[-1]["threads"] == ["bad"]
    assert (
        "bad  failed (error): ValueError: no luck; try again: `hrm-agent resume bad"
        in hrm("resume", "--all").out
    )
    assert hrm("resume").code == 2
    for words, name in (
        (("one",), "one"),
        (("--at", "1"), "--at"),
        (("--config", "a=b"), "--config"),
    ):
        refused = hrm("resume", "--all", *words)
        assert refused.code == 2 and f"Leave out {name}" in refused.err


def test_where_no_node_is_run_it_is_said(stopping: Path, hrm: Command) -> None:
    """A waiting thread asks its question again. The answer of an ended one looks like that of a new
    run.
    """
    words = ("run", "x", "--thread", "t", "--graph", "./stopping.py:options")
    asked = [line for line in hrm(*words).out.splitlines() if line.startswith("asks:")]
    assert len(asked) == 1
    for again in (hrm("resume", "t"), hrm(*words)):
        assert again.code == 0 and again.out.splitlines()[0] == asked[0]
    assert hrm("resume", "t", "--json").lines[0]["event"] == "question"
    assert "No node was run" not in hrm("resume", "t", "--answer", "yes").out
    for again in (hrm("resume", "t"), hrm(*words)):
        assert again.code == 0 and "No node was run: the graph is at its end." in again.out
