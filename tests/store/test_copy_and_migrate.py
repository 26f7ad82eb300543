"""Stores copied to another backend or key, and threads migrated from LangGraph's own savers."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt

from hrm_agent.errors import StoreError, StoreVersionError
from hrm_agent.store import RunStore, open_store
from hrm_agent.store.upkeep.copying import copy_store
from hrm_agent.store.upkeep.maintenance import stats, verify
from hrm_agent.store.upkeep.migrate import migrate
from hrm_agent.trajectory import ForkRef, Overlay, Verdict
from tests.support.postgres import PostgresServer
from tests.support.store.bodies import execute, stored_bytes
from tests.support.trajectory.samples import make_trajectory

KEYS = {name: bytes([number]) * 32 for number, name in enumerate(("first", "second"), 1)}
THREADS = ("plain", "branched", "asked")


def on(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


def say(word: str) -> Any:
    return {"messages": [HumanMessage(word)]}


class State(MessagesState):
    notes: dict[str, Any]


def compiled(saver: BaseCheckpointSaver[Any]) -> Any:
    """A subgraph, two parallel tasks after it,
    and a question where the last message asks for one.
    """

    def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"{len(state['messages'])} " + "thinking " * 20)]}

    def note(state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(f"note {state['name']}")]}

    def ask(state: State) -> dict[str, Any]:
        words = {"notes": {"of": "x" * 600, "number": len(state["messages"])}}
        asks = state["messages"][0].content == "ask"
        return {
            **words,
            "messages": [AIMessage(f"{interrupt('which?')}!" if asks else "no question")],
        }

    inner = StateGraph(MessagesState).add_node("think", think).add_edge(START, "think").compile()
    graph = StateGraph(State).add_node("inner", inner).add_node("note", note).add_node("ask", ask)
    graph = graph.add_edge(START, "inner").add_edge("note", "ask")
    graph.add_conditional_edges(
        "inner", lambda _: [Send("note", {"name": name}) for name in "ba"], ["note"]
    )
    return graph.compile(checkpointer=saver)


def fill(saver: BaseCheckpointSaver[Any]) -> None:
    """Conversations, a branch, an edit, and a question that waits."""
    graph = compiled(saver)
    for word in ("one", "two"):
        graph.invoke(say(word), on("plain"))
        graph.invoke(say(word), on("branched"))
    early = list(graph.get_state_history(on("branched")))[-3]
    graph.invoke(None, graph.update_state(early.config, say("edited")))
    graph.invoke(say("ask"), on("asked"))


def record(store: RunStore) -> None:
    """Trajectories with calls, a fork and a judgement."""
    made = make_trajectory()
    store.journal.write_trajectory(made)
    for call in made.calls:
        store.journal.write_call(call)
    for tool_call in made.tool_calls:
        store.journal.write_tool_call(tool_call)
    fork = ForkRef(trajectory_id=made.id, checkpoint_id="c")
    store.journal.write_trajectory(
        make_trajectory(id="fork", thread_id="fork", calls=(), forked_from=fork)
    )
    store.journal.write_overlays([an_overlay()])


def an_overlay() -> Overlay:
    return Overlay(
        run_id="training",
        step=3,
        trajectory_id="trajectory-1",
        group_id="group-1",
        reward=1.0,
        verdict=Verdict.KEPT,
        reason="r",
        penalty_error=0.0,
        penalty_format=0.5,
    )


def history(saver: BaseCheckpointSaver[Any]) -> dict[str, list[Any]]:
    return {thread: [plain(found) for found in saver.list(on(thread))] for thread in THREADS}


def plain(found: Any) -> Any:
    """Part of a checkpoint that every saver guarantees."""

    def place(config: Any) -> Any:
        named = ("thread_id", "checkpoint_ns", "checkpoint_id")
        return {name: config["configurable"][name] for name in named} if config else None

    return found._replace(config=place(found.config), parent_config=place(found.parent_config))


def states(saver: BaseCheckpointSaver[Any]) -> dict[str, list[Any]]:
    """Histories as a graph reports them: values, next nodes, questions, metadata."""
    graph = compiled(saver)
    return {
        thread: [
            (
                m.values,
                m.next,
                m.metadata,
                m.created_at,
                m.tasks,
                m.interrupts,
                plain_config(m.parent_config),
            )
            for m in graph.get_state_history(on(thread))
        ]
        for thread in THREADS
    }


def plain_config(config: Any) -> Any:
    return config["configurable"]["checkpoint_id"] if config else None


def journal(store: RunStore) -> Any:
    return (
        list(store.journal.trajectories()),
        store.journal.tool_calls(),
        store.journal.overlays("training"),
    )


# copies


BODIES = ("sqlite", "sqlite first", "sqlite second", "postgresql", "postgresql second")


@contextmanager
def opened(body: str, tmp_path: Path, postgres: PostgresServer) -> Generator[RunStore]:
    kind, _, key = body.partition(" ")
    where = (
        postgres.create_database()
        if kind == "postgresql"
        else f"sqlite:///{tmp_path}/{body.replace(' ', '-')}.db"
    )
    with open_store(where, key=KEYS.get(key)) as store:
        yield store
    if kind == "postgresql":
        postgres.drop_database(where)


def test_a_copy_is_the_store_again(tmp_path: Path, postgres: PostgresServer) -> None:
    """Copies go around all backends and keys, and back to the start."""
    with open_store(tmp_path / "origin.db") as origin:
        fill(origin.checkpointer)
        record(origin)
        expected = history(origin.checkpointer), journal(origin), origin.threads()
        rows = stats(origin).rows
    source = tmp_path / "origin.db"
    steps = ("sqlite first", "sqlite second", "postgresql second", "postgresql", "sqlite")
    with open_store(source) as first:
        before = first
        stack: list[Any] = []
        for body in steps:
            context = opened(body, tmp_path, postgres)
            target = context.__enter__()
            stack.append(context)
            counts = copy_store(before, target)
            assert (
                history(target.checkpointer),
                journal(target),
                target.threads(),
            ) == expected, body
            assert stats(target).rows == rows and counts["values"] == rows["values"], body
            assert counts["checkpoints"] == rows["checkpoints"] and counts["overlays"] == 1
            assert list(verify(target)) == [], body
            before = target
        graph = compiled(before.checkpointer)
        assert graph.invoke(Command(resume="plum"), on("asked"))["messages"][-1].content == "plum!"
        assert list(verify(before)) == []
        assert (
            history(first.checkpointer),
            journal(first),
            first.threads(),
        ) == expected, "the origin is as it was"
        while stack:
            stack.pop().__exit__(None, None, None)


def test_a_sealed_copy_keeps_nothing_readable(tmp_path: Path) -> None:
    target = tmp_path / "sealed.db"
    with (
        open_store(tmp_path / "origin.db") as origin,
        open_store(target, key=KEYS["first"]) as sealed,
    ):
        fill(origin.checkpointer)
        record(origin)
        copy_store(origin, sealed)
        clear, kept = stored_bytes(origin.url), stored_bytes(sealed.url)
    for word in (b"thinking", b"word_problems", b"compute", b"messages"):
        assert word not in kept + target.read_bytes()
    assert b"thinking" in clear and b"word_problems" in clear
    with pytest.raises(StoreError, match="is encrypted"):
        open_store(target)


def test_a_copy_goes_on_as_its_origin_does(tmp_path: Path) -> None:
    """Additions to either store refer to the same values. The target knows the values it received."""
    with open_store(tmp_path / "origin.db") as origin, open_store(tmp_path / "copy.db") as copied:
        fill(origin.checkpointer)
        copy_store(origin, copied)
        for store in (origin, copied):
            compiled(store.checkpointer).invoke(say("three"), on("plain"))
            assert list(verify(store)) == []
        ends = [
            compiled(s.checkpointer).get_state(on("plain")).values["messages"]
            for s in (origin, copied)
        ]
        assert [m.content for m in ends[0]] == [m.content for m in ends[1]]


@pytest.mark.parametrize("held", ["checkpoints", "trajectory", "call", "tool call", "overlay"])
def test_a_copy_into_a_store_that_holds_something_is_refused(held: str, tmp_path: Path) -> None:
    with open_store(tmp_path / "origin.db") as origin, open_store(tmp_path / "target.db") as target:
        fill(origin.checkpointer)
        record(origin)
        sample = make_trajectory()
        if held == "checkpoints":
            compiled(target.checkpointer).invoke(say("mine"), on("mine"))
        if held == "trajectory":
            target.journal.write_trajectory(sample)
        if held == "call":
            target.journal.write_call(sample.calls[0])
        if held == "tool call":
            target.journal.write_tool_call(sample.tool_calls[0])
        if held == "overlay":
            target.journal.write_overlays([an_overlay()])
        before = stats(target).rows
        with pytest.raises(StoreError, match=r"is not empty\. Copy into a new store"):
            copy_store(origin, target)
        assert stats(target).rows == before


def test_a_copy_of_a_damaged_store_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with open_store(tmp_path / "origin.db") as origin, open_store(tmp_path / "target.db") as target:
        fill(origin.checkpointer)
        record(origin)
        execute(origin.url, "DELETE FROM blobs WHERE seq = (SELECT max(seq) FROM blobs)")
        with pytest.raises(StoreError, match=r"is lost\. Nothing was copied"):
            copy_store(origin, target)
        assert set(stats(target).rows.values()) == {0}


# from LangGraph's savers


@pytest.fixture(params=["sqlite", "postgresql"])
def stock(
    request: pytest.FixtureRequest, tmp_path: Path, postgres: PostgresServer
) -> Iterator[str]:
    """A database that one of LangGraph's savers filled."""
    if request.param == "sqlite":
        path = tmp_path / "stock.db"
        with SqliteSaver.from_conn_string(str(path)) as saver:
            fill(saver)
        yield str(path)
        return
    url = postgres.create_database()
    with PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        fill(saver)
    yield url
    postgres.drop_database(url)


@contextmanager
def stock_saver(where: str, serde: Any = None) -> Generator[BaseCheckpointSaver[Any]]:
    if where.startswith("postgresql:"):
        with PostgresSaver.from_conn_string(where) as saver:
            yield saver
        return
    with closing(sqlite3.connect(where, check_same_thread=False)) as connection:
        yield SqliteSaver(connection, serde=serde)


def test_threads_of_a_stock_saver(stock: str, tmp_path: Path) -> None:
    with stock_saver(stock) as saver:
        expected, told = history(saver), states(saver)
    with open_store(tmp_path / "new.db", key=KEYS["first"]) as store:
        taken = migrate(stock, store)
        assert taken.threads == 3
        assert (
            taken.checkpoints
            == stats(store).rows["checkpoints"]
            == sum(map(len, expected.values()))
        )
        assert by_place(history(store.checkpointer)) == by_place(expected)
        assert states(store.checkpointer) == told
        assert list(verify(store)) == []
        rows = stats(store).rows
        assert migrate(stock, store) == taken, "doing it again changes nothing"
        assert stats(store).rows == rows and states(store.checkpointer) == told


def by_place(found: dict[str, list[Any]]) -> dict[Any, Any]:
    """Every checkpoint by its place: savers list those of several namespaces in orders of their
    own.
    """
    return {
        tuple(entry.config.values()): entry._replace(
            pending_writes=sorted(entry.pending_writes, key=repr)
        )
        for entries in found.values()
        for entry in entries
    }


def test_a_graph_goes_on_where_it_was(stock: str, tmp_path: Path) -> None:
    with open_store(tmp_path / "new.db") as store:
        migrate(stock, store)
        graph = compiled(store.checkpointer)
        answered = graph.invoke(Command(resume="plum"), on("asked"))
        assert answered["messages"][-1].content == "plum!"
        assert len(graph.invoke(say("three"), on("plain"))["messages"]) == 15
        early = list(graph.get_state_history(on("branched")))[-3]
        assert graph.invoke(None, early.config)["messages"][0].content == "one"
        assert list(verify(store)) == []
    with stock_saver(stock) as saver:
        there = compiled(saver).invoke(Command(resume="plum"), on("asked"))
    assert [m.content for m in there["messages"]] == [m.content for m in answered["messages"]]


def digest(path: Path) -> dict[str, str]:
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in path.parent.glob(f"{path.name}*")
        if not file.name.endswith("-shm")  # a reader marks its place there
    }


@pytest.mark.parametrize("stock", ["sqlite"], indirect=True)
def test_the_source_is_left_as_it_was(stock: str, tmp_path: Path) -> None:
    before = digest(Path(stock))
    with open_store(tmp_path / "new.db") as store:
        migrate(stock, store)
        assert len(history(store.checkpointer)["plain"]) > 0
    assert {name: digest(Path(stock)).get(name) for name in before} == before
    assert [
        size
        for name in digest(Path(stock)).keys() - before.keys()
        if (size := (tmp_path / name).stat().st_size)
    ] == []


@dataclass
class Own:
    number: int


class Owning(TypedDict):
    value: Any


def test_a_type_of_ones_own_has_to_be_named(tmp_path: Path) -> None:
    source, name = tmp_path / "stock.db", f"{__name__}:Own"
    serde = JsonPlusSerializer(allowed_msgpack_modules=[(__name__, "Own")])
    with stock_saver(str(source), serde) as saver:
        graph = StateGraph(Owning).add_node("n", lambda _: {"value": Own(7)}).add_edge(START, "n")
        graph.compile(checkpointer=saver).invoke({"value": 0}, on("t"))
    with open_store(tmp_path / "new.db", allow=[name]) as store:
        with pytest.raises(
            StoreError, match=rf"Thread 't' cannot be read: .*{__name__}\.Own.*--allow"
        ):
            migrate(str(source), store)
        assert stats(store).rows["checkpoints"] == 0
        assert migrate(str(source), store, [name]).threads == 1
        assert graph.compile(checkpointer=store.checkpointer).get_state(on("t")).values == {
            "value": Own(7)
        }


def test_what_cannot_be_migrated_is_told(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database" * 100)
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE people (name TEXT)")
    open_store(tmp_path / "new.db").close()
    with open_store(tmp_path / "target.db") as store:
        for source, said in (
            (tmp_path / "absent.db", "There is no file"),
            (tmp_path / "text", "cannot be read"),
            (tmp_path / "other.db", "has nothing to migrate"),
            (tmp_path / "new.db", "has nothing to migrate"),
            ("postgresql://nobody@127.0.0.1:1/x", "The database cannot be read"),
        ):
            with pytest.raises(StoreError, match=said):
                migrate(str(source), store)


def test_a_store_of_version_1_is_refused_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE trajectories (id TEXT PRIMARY KEY, record TEXT NOT NULL)")
        connection.execute("PRAGMA user_version = 1")
    before = digest(path)
    with pytest.raises(
        StoreVersionError, match=r"version 1; .* Nothing was changed\. hrm-agent 0\.2\.0 copies it"
    ):
        open_store(path)
    assert digest(path) == before
