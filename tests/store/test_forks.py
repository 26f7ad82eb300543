"""Forks of threads: the lineage and nothing else, sealed or not; and the calls that a fork begins
with.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph, add_messages
from langgraph.types import Command, interrupt

from hrm_agent.errors import StoreError
from hrm_agent.store import RunStore, open_store
from hrm_agent.store.upkeep.maintenance import delete_runs, stats, verify
from hrm_agent.trajectory import ForkRef, Trajectory
from tests.support.postgres import PostgresServer
from tests.support.trajectory.samples import make_call, make_tool_call, make_trajectory


@pytest.fixture(params=["sqlite", "sqlite encrypted", "postgresql"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, postgres: PostgresServer
) -> Iterator[RunStore]:
    body, _, sealed = request.param.partition(" ")
    where = postgres.create_database() if body == "postgresql" else f"sqlite:///{tmp_path}/store.db"
    with open_store(where, key=bytes(range(32)) if sealed else None) as opened:
        yield opened
    if body == "postgresql":
        postgres.drop_database(where)


def on(thread: str, **named: Any) -> Any:
    return {"configurable": {"thread_id": thread, **named}}


def history(store: RunStore, thread: str, ns: str | None = None) -> list[Any]:
    config = on(thread) if ns is None else on(thread, checkpoint_ns=ns)
    return [without_thread(found) for found in store.checkpointer.list(config)]


def without_thread(found: Any) -> Any:
    def place(config: Any) -> Any:
        return (
            {k: v for k, v in config["configurable"].items() if k != "thread_id"}
            if config
            else None
        )

    return found._replace(config=place(found.config), parent_config=place(found.parent_config))


def say(word: str) -> Any:
    return {"messages": [HumanMessage(word)]}


class Remembering(MessagesState):
    seen: Annotated[list[AnyMessage], add_messages]


def nested(store: RunStore) -> Any:
    """A node, a subgraph that begins anew each time, and one that remembers."""

    def answer(state: Any) -> dict[str, Any]:
        return {
            "messages": [AIMessage(f"{len(state['messages'])}: {state['messages'][-1].content}")]
        }

    def remember(state: Any) -> dict[str, Any]:
        return {
            "seen": [AIMessage(f"{len(state['seen'])} seen")],
            "messages": [AIMessage(f"{len(state['seen'])} seen")],
        }

    inner = StateGraph(MessagesState).add_node("think", answer).add_edge(START, "think").compile()
    lasting = (
        StateGraph(Remembering)
        .add_node("keep", remember)
        .add_edge(START, "keep")
        .compile(checkpointer=True)
    )
    graph = (
        StateGraph(MessagesState)
        .add_node("first", answer)
        .add_node("inner", inner)
        .add_node("lasting", lasting)
    )
    graph = graph.add_edge(START, "first").add_edge("first", "inner").add_edge("inner", "lasting")
    return graph.compile(checkpointer=store.checkpointer)


def ids(found: list[Any]) -> set[str]:
    return {entry.checkpoint["id"] for entry in found}


def test_a_fork_is_the_lineage_and_nothing_else(store: RunStore) -> None:
    graph = nested(store)
    for word in ("one", "two"):
        graph.invoke(say(word), on("origin"))
    trunk = list(graph.get_state_history(on("origin")))
    early = next(m for m in trunk if m.next == ("inner",) and len(m.values["messages"]) == 2)
    # later than all of the trunk
    graph.invoke(None, graph.update_state(early.config, say("a branch")))
    chosen = next(m for m in trunk if m.next == ("inner",) and len(m.values["messages"]) > 2)
    before = history(store, "origin")
    values = stats(store).rows["values"]
    id_ = chosen.config["configurable"]["checkpoint_id"]
    store.fork_thread("origin", "fork", id_)

    assert history(store, "origin") == before
    assert stats(store).rows["values"] == values, "values are shared"
    line, roots = [], {found.checkpoint["id"]: found for found in history(store, "origin", "")}
    at: str | None = id_
    while at is not None:
        line.append(roots[at])
        at = roots[at].parent_config["checkpoint_id"] if roots[at].parent_config else None
    expected = [line[0]._replace(pending_writes=[]), *line[1:]]
    assert history(store, "fork", "") == expected
    beneath = {ns for found in history(store, "fork") if (ns := found.config["checkpoint_ns"])}
    parents = ids(line[1:])
    for found in before:
        inside = found.config["checkpoint_ns"] != "" and found.metadata["parents"][""] in parents
        assert (found in history(store, "fork")) == (inside or found in line[1:]), found.config
    assert {ns.partition(":")[0] for ns in beneath} == {"inner", "lasting"}
    assert list(verify(store)) == []


def test_a_fork_runs_on_as_its_origin_did(store: RunStore) -> None:
    """Subgraph memory is restored as of the forked checkpoint."""
    graph = nested(store)
    for word in ("one", "two", "three"):
        graph.invoke(say(word), on("origin"))
    ends = [m for m in graph.get_state_history(on("origin")) if not m.next][::-1]
    store.fork_thread("origin", "fork", ends[0].config["configurable"]["checkpoint_id"])
    again = [
        graph.invoke(say(word), on("fork"))["messages"][-1].content for word in ("two", "three")
    ]
    assert again == [m.values["messages"][-1].content for m in ends[1:]] == ["1 seen", "2 seen"]


def asking(store: RunStore) -> Any:
    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"{interrupt('which?')}!")]}

    graph = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask")
    return graph.compile(checkpointer=store.checkpointer)


def test_a_question_is_asked_anew_in_a_fork(store: RunStore) -> None:
    """The origin's answer is a pending write of the chosen checkpoint, which is not copied."""
    graph = asking(store)
    graph.invoke(say("hello"), on("origin"))
    waiting = graph.get_state(on("origin"))
    graph.invoke(Command(resume="plum"), on("origin"))
    store.fork_thread("origin", "fork", waiting.config["configurable"]["checkpoint_id"])
    assert graph.get_state(on("fork")).next == ("ask",)
    assert graph.invoke(None, on("fork"))["__interrupt__"][0].value == "which?"
    assert graph.invoke(Command(resume="pear"), on("fork"))["messages"][-1].content == "pear!"
    assert graph.get_state(on("origin")).values["messages"][-1].content == "plum!"


def test_a_fork_stays_when_its_origin_goes(store: RunStore) -> None:
    graph = nested(store)
    graph.invoke(say("one"), on("origin"))
    newest = graph.get_state(on("origin")).config["configurable"]["checkpoint_id"]
    store.fork_thread("origin", "fork", newest)
    expected = history(store, "fork")
    delete_runs(store, ["origin"])
    assert history(store, "fork") == expected and list(verify(store)) == []
    assert graph.invoke(say("two"), on("fork"))["messages"][-1].content == "1 seen"


def test_what_cannot_be_forked(store: RunStore) -> None:
    graph = asking(store)
    for thread in ("origin", "other"):
        graph.invoke(say("hello"), on(thread))
    newest = graph.get_state(on("origin")).config["configurable"]["checkpoint_id"]
    before = [history(store, thread) for thread in ("origin", "other")]
    for source, target, id_, said in (
        ("origin", "fork", "nothing", "Thread 'origin' has no checkpoint 'nothing'"),
        ("other", "fork", newest, "Thread 'other' has no checkpoint"),
        ("absent", "fork", newest, "Thread 'absent' has no checkpoint"),
        ("origin", "other", newest, "There is a thread 'other' already"),
        ("origin", "origin", newest, "There is a thread 'origin' already"),
    ):
        with pytest.raises(StoreError, match=said):
            store.fork_thread(source, target, id_)
    assert [history(store, thread) for thread in ("origin", "other")] == before
    assert len(store.threads()) == 2


# calls


class Runs:
    """Threads of a graph with a call and a tool call recorded for each step, without a model."""

    def __init__(self, store: RunStore) -> None:
        self.store, self.numbers = store, itertools.count()
        graph = (
            StateGraph(MessagesState)
            .add_node("step", lambda _: say("a step"))
            .add_edge(START, "step")
        )
        self.graph: Any = graph.compile(checkpointer=store.checkpointer)

    def begin(self, thread: str, of: str | None = None, at: str = "") -> None:
        if of is not None:
            self.store.fork_thread(of, thread, at)
        fork = ForkRef(trajectory_id=f"id of {of}", checkpoint_id=at) if of is not None else None
        made = make_trajectory(
            id=f"id of {thread}", thread_id=thread, calls=(), tool_calls=(), forked_from=fork
        )
        self.store.journal.write_trajectory(made)

    def step(self, thread: str) -> tuple[str, str, str]:
        """Take one more step. Return the checkpoint it started from, and the names of its calls."""
        self.graph.invoke(say("go"), on(thread))
        moments = list(self.graph.get_state_history(on(thread)))
        started = next(m for m in moments if m.next == ("step",)).config["configurable"][
            "checkpoint_id"
        ]
        number = str(next(self.numbers))
        facts = {
            "thread_id": thread,
            "checkpoint_id": started,
            "root_checkpoint_id": started,
            "task_id": number,
        }
        identity = make_call("x").identity.model_copy(
            update={**facts, "checkpoint_ns": f"step:{number}"}
        )
        self.store.journal.write_call(
            call := make_call(number, identity=identity, request_hash=number)
        )
        self.store.journal.write_tool_call(tool := make_tool_call(number, identity=identity))
        return started, call.id, tool.id

    def newest(self, thread: str) -> str:
        return self.graph.get_state(on(thread)).config["configurable"]["checkpoint_id"]

    def read(self, thread: str) -> Trajectory:
        return self.store.journal.trajectory(f"id of {thread}")


def told(trajectory: Trajectory) -> tuple[list[str], list[str]]:
    return [call.id for call in trajectory.calls], [call.id for call in trajectory.tool_calls]


def called(*steps: tuple[str, str, str]) -> tuple[list[str], list[str]]:
    return [step[1] for step in steps], [step[2] for step in steps]


def test_a_fork_begins_with_the_calls_of_its_lineage(store: RunStore) -> None:
    runs = Runs(store)
    runs.begin("origin")
    one, two, three = (runs.step("origin") for _ in range(3))
    runs.begin("fork", "origin", three[0])  # where the third step is to be taken
    assert told(runs.read("fork")) == called(one, two)
    own = runs.step("fork")
    late = runs.step("origin")  # the origin goes on
    assert told(runs.read("fork")) == called(one, two, own)
    assert told(runs.read("origin")) == called(one, two, three, late)
    fork = runs.read("fork")
    assert ([c.id for c in fork.own_calls], [c.id for c in fork.own_tool_calls]) == called(own)
    assert runs.read("origin").own_calls == runs.read("origin").calls
    assert [t.id for t in store.journal.forks_of("id of origin")] == ["id of fork"]
    by_iteration = {t.id: told(t) for t in store.journal.trajectories()}
    assert by_iteration["id of fork"] == called(one, two, own)


def test_a_fork_of_a_fork(store: RunStore) -> None:
    """Forked after the first fork's own work, and before it, at a checkpoint that the fork
    inherited.
    """
    runs = Runs(store)
    runs.begin("origin")
    one, two = runs.step("origin"), runs.step("origin")
    runs.begin("fork", "origin", runs.newest("origin"))
    third, fourth = runs.step("fork"), runs.step("fork")
    runs.step("origin")
    runs.begin("later", "fork", fourth[0])
    assert told(runs.read("later")) == called(one, two, third)
    runs.begin("earlier", "fork", two[0])
    assert told(runs.read("earlier")) == called(one)
    own = runs.step("earlier")
    assert told(runs.read("earlier")) == called(one, own)
    assert [c.id for c in runs.read("earlier").own_calls] == called(own)[0]
    runs.begin("fourth", "later", runs.newest("later"))
    last = runs.step("fourth")
    assert told(runs.read("fourth")) == called(one, two, third, last)
    assert list(verify(store)) == []


def test_siblings_do_not_see_each_other(store: RunStore) -> None:
    runs = Runs(store)
    runs.begin("origin")
    one = runs.step("origin")
    at = runs.newest("origin")
    own = {}
    for name in ("a", "b"):
        runs.begin(name, "origin", at)
        own[name] = runs.step(name)
    for name, step in own.items():
        assert told(runs.read(name)) == called(one, step)
