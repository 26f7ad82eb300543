"""Hostile rows do not run, hostile filters find nothing, and secrets are not on the disk."""

from __future__ import annotations

import base64
import os
import pickle
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, MessagesState, StateGraph

from hrm_agent.errors import StoreError
from hrm_agent.store import RunStore, open_store
from hrm_agent.store.values.value_reader import MSGPACK, hash_of
from hrm_agent.trajectory import RunStatus, TaskRef, Trajectory
from tests.support.store.bodies import execute, stored_bytes

KEY, OTHER_KEY = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
SECRET = "sk-hunter2-0123456789abcdef"
WORDS = "the quick brown fox that nobody else may read"
PICKLE = 9
"""A kind of value that no version of the store has written."""


def conversation(store: RunStore) -> Any:
    """A graph of two nodes, one of them a subgraph with checkpoints of its own."""

    def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"{WORDS} {len(state['messages'])}")]}

    inner = (
        StateGraph(MessagesState)
        .add_node("think", think)
        .add_edge(START, "think")
        .compile(checkpointer=True)
    )
    outer = StateGraph(MessagesState).add_node("first", think).add_node("second", inner)
    graph = outer.add_edge(START, "first").add_edge("first", "second").compile()
    return graph.copy(update={"checkpointer": store.checkpointer.allowing(graph)})


def on(thread: str, **named: Any) -> Any:
    return {"configurable": {"thread_id": thread, **named}}


def converse(store: RunStore, config: Any) -> Any:
    graph = conversation(store)
    graph.invoke({"messages": [HumanMessage(f"{WORDS}?")]}, config)
    return graph


# Rows that were forged


class Forgery:
    """Bytes that write a file when they are deserialized without checks."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.witness}",)

    def pickled(self) -> tuple[int, bytes]:
        return PICKLE, pickle.dumps(self)

    def packed(self) -> tuple[int, bytes]:
        """Payload in the msgpack extension with which LangGraph calls constructors."""
        return MSGPACK, ormsgpack.packb(
            ormsgpack.Ext(0, ormsgpack.packb(("os", "system", f"touch {self.witness}")))
        )


@pytest.fixture
def forgery(tmp_path: Path) -> Forgery:
    return Forgery(tmp_path / "ran")


def test_the_forgeries_are_dangerous(forgery: Forgery) -> None:
    trusting = JsonPlusSerializer(allowed_msgpack_modules=True)
    for load in (
        lambda: pickle.loads(forgery.pickled()[1]),
        lambda: trusting.loads_typed(("msgpack", forgery.packed()[1])),
    ):
        load()
        assert forgery.witness.exists()
        forgery.witness.unlink()


def put_into_checkpoints(url: str, reference: Any) -> None:
    """Make every channel of every checkpoint refer to `reference`."""
    for (manifest,) in execute(url, "SELECT manifest FROM checkpoints"):
        rest, channels = ormsgpack.unpackb(manifest)
        forged = ormsgpack.packb(
            [rest, [[name, version, reference] for name, version, _ in channels]]
        )
        execute(url, "UPDATE checkpoints SET manifest = ? WHERE manifest = ?", (forged, manifest))


def put_into_writes(url: str, reference: Any) -> None:
    for (data,) in execute(url, "SELECT DISTINCT data FROM writes"):
        forged = ormsgpack.packb(
            [[index, channel, reference] for index, channel, _ in ormsgpack.unpackb(data)]
        )
        execute(url, "UPDATE writes SET data = ? WHERE data = ?", (forged, data))


@pytest.mark.parametrize("place", [put_into_checkpoints, put_into_writes])
@pytest.mark.parametrize("as_blob", [True, False])
@pytest.mark.parametrize("form", [Forgery.pickled, Forgery.packed])
def test_a_forged_row_is_refused_and_does_not_run(
    form: Callable[[Forgery], tuple[int, bytes]],
    as_blob: bool,
    place: Callable[[str, Any], None],
    forgery: Forgery,
    url: str,
) -> None:
    kind, data = form(forgery)
    with open_store(url) as store:
        converse(store, on("the thread"))
        steps = store.checkpointer.list(on("the thread", checkpoint_ns=""))
        newest = next(found for found in steps if found.pending_writes)
    if as_blob:
        execute(
            url,
            "INSERT INTO blobs (hash, kind, data) VALUES (?, ?, ?)",
            (hash_of(kind, data), kind, data),
        )
    place(url, hash_of(kind, data) if as_blob else [kind, data])
    with open_store(url) as store:
        graph = conversation(store)
        for read in (
            lambda: store.checkpointer.get_tuple(newest.config),
            lambda: [*store.checkpointer.list(on("the thread"))],
            lambda: graph.get_state(newest.config),
            lambda: graph.invoke(None, newest.config),
        ):
            with pytest.raises(StoreError, match=r"Thread 'the thread', checkpoint [0-9a-f-]{36}"):
                read()
            assert not forgery.witness.exists()


def test_a_value_under_the_name_of_another_is_refused(url: str) -> None:
    with open_store(url) as store:
        converse(store, on("t"))
    execute(url, "UPDATE blobs SET data = ?", (ormsgpack.packb("another"),))
    with (
        open_store(url) as store,
        pytest.raises(StoreError, match=r"Thread 't', checkpoint .*hash"),
    ):
        conversation(store).get_state(on("t"))


# Filters


INJECTIONS = [
    "x' OR 1=1 --",
    'x" OR 1=1 --',
    "') OR 1=1 --",
    "source' = 'loop' OR 'a' = 'a",
    "%",
    "'; DROP TABLE blobs; --",
]


@pytest.mark.parametrize("injection", INJECTIONS)
def test_a_filter_injects_nothing(injection: str, url: str) -> None:
    with open_store(url) as store:
        converse(store, on("mine"))
        saver, everything = store.checkpointer, [*store.checkpointer.list(None)]
        assert 0 < len([*saver.list(None, filter={"source": "loop"})]) < len(everything)
        assert [*saver.list(None, filter={injection: "loop"})] == []
        assert [*saver.list(None, filter={"source": injection})] == []
        assert [*saver.list(on(injection))] == []
        assert [*saver.list(on("mine", checkpoint_ns=injection))] == []
        assert [*saver.list(None, before=on("mine", checkpoint_id=f"0{injection}"))] == []
        assert store.threads(run_id=injection) == store.threads(status=injection) == []
        saver.delete_thread(injection)
        saver.delete_for_runs([injection])
        assert len([*saver.list(None)]) == len(everything)


def test_a_thread_may_have_any_name(url: str) -> None:
    with open_store(url) as store:
        for name in INJECTIONS:
            converse(store, on(name))
        assert sorted(info.thread_id for info in store.threads()) == sorted(INJECTIONS)
        store.checkpointer.delete_thread(INJECTIONS[0])
        assert sorted(info.thread_id for info in store.threads()) == sorted(INJECTIONS[1:])


# The file


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.glob("store.db*")}


def test_only_its_owner_reads_a_store(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with open_store(tmp_path / "store.db") as store:
            converse(store, on("t"))
            assert modes(tmp_path) == dict.fromkeys(
                ("store.db", "store.db-wal", "store.db-shm"), 0o600
            )
    finally:
        os.umask(before)


def test_a_file_that_others_may_read_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    open_store(path).close()
    path.chmod(0o644)
    with open_store(path) as store:
        converse(store, on("t"))
        assert modes(tmp_path) == dict.fromkeys(("store.db", "store.db-wal", "store.db-shm"), 0o600)


# Secrets


async def test_what_stands_in_configurable_is_not_stored(url: str) -> None:
    """LangChain copies scalars of `configurable` into the metadata of a run, where stock savers
    store them.
    """
    config = {
        **on("t", api_key=SECRET, user=f"user {SECRET}"),
        "metadata": {"experiment": "a fact of the run"},
    }
    with open_store(url) as store:
        graph = converse(store, config)
        await graph.ainvoke({"messages": [HumanMessage("again")]}, config)
        graph.update_state(config, {"messages": [HumanMessage("edited")]})
        kept = stored_bytes(url)
        assert all(
            found.metadata is not None and SECRET not in repr((found.metadata, found.config))
            for found in store.checkpointer.list(on("t"))
        )
    assert SECRET.encode() not in kept + stored_bytes(url)
    assert b"a fact of the run" in kept and WORDS.encode() in kept, (
        "the scan does not find what is there"
    )


def a_trajectory() -> Trajectory:
    task = TaskRef(id="1", family="f", prompt=WORDS)
    return Trajectory(
        id="i",
        thread_id="t",
        task=task,
        graph="g",
        policy="p",
        status=RunStatus.COMPLETED,
        started_at=0.0,
    )


def test_an_encrypted_store_keeps_nothing_readable(url: str) -> None:
    config = {**on("t"), "metadata": {"experiment": WORDS}}
    with open_store(url, key=KEY) as store:
        graph = converse(store, config)
        store.journal.write_trajectory(a_trajectory())
        kept = stored_bytes(url)
        read = graph.get_state(on("t"))
        assert read.metadata["experiment"] == WORDS and WORDS in str(read.values)
        assert store.journal.trajectory("i") == a_trajectory()
    kept += stored_bytes(url)
    found = [
        word
        for word in (
            "quick",
            "brown",
            "nobody else",
            "human",
            "messages",
            "experiment",
            "langchain",
        )
        if word.encode() in kept
    ]
    assert found == []
    with open_store(url, key=KEY) as store:
        assert WORDS in str(conversation(store).get_state(on("t")).values)


def test_another_key_is_refused(url: str) -> None:
    with open_store(url, key=KEY) as store:
        converse(store, on("t"))
    with pytest.raises(StoreError, match="key does not fit"):
        open_store(url, key=OTHER_KEY)
    with pytest.raises(StoreError, match="is encrypted"):
        open_store(url)


def test_a_key_for_a_store_in_the_clear_is_refused(url: str) -> None:
    with open_store(url) as store:
        converse(store, on("t"))
    with pytest.raises(StoreError, match="is not encrypted"):
        open_store(url, key=KEY)


SEALED = [
    "checkpoints.manifest",
    "checkpoints.metadata",
    "writes.data",
    "blobs.data",
    "trajectories.record",
]


@pytest.mark.parametrize("column", SEALED)
def test_a_row_that_is_not_sealed_is_refused(column: str, url: str, tmp_path: Path) -> None:
    """Rows of a store in the clear are put into the encrypted one, where they would be valid
    without its seal.
    """
    table, _, name = column.partition(".")
    plain = f"sqlite:///{tmp_path}/plain.db"
    for where, key in ((plain, None), (url, KEY)):
        with open_store(where, key=key) as store:
            converse(store, on("t"))
            store.journal.write_trajectory(a_trajectory())
    (data,) = execute(plain, f"SELECT {name} FROM {table} LIMIT 1")[0]
    execute(url, f"UPDATE {table} SET {name} = ?", (data,))
    with (
        open_store(url, key=KEY) as store,
        pytest.raises(StoreError, match="was not sealed with the store's key"),
    ):
        assert [*store.checkpointer.list(on("t"))] == store.journal.trajectory("i")


def test_a_sealed_row_stays_at_its_place(url: str) -> None:
    with open_store(url, key=KEY) as store:
        converse(store, on("mine"))
        converse(store, on("theirs"))
    (manifest,), *_ = execute(
        url, "SELECT manifest FROM checkpoints WHERE thread_id = 'theirs' ORDER BY id DESC"
    )
    execute(url, "UPDATE checkpoints SET manifest = ? WHERE thread_id = 'mine'", (manifest,))
    with open_store(url, key=KEY) as store:
        with pytest.raises(StoreError, match="was not sealed with the store's key"):
            conversation(store).get_state(on("mine"))
        assert conversation(store).get_state(on("theirs")).values
