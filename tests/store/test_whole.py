"""Killed or failed work, clocks set back and values nested too deeply: nothing is left half done,
and all messages are true.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

from hrm_agent.cli.main import main
from hrm_agent.errors import RunError, StoreError, UnstorableError
from hrm_agent.store import RunStore, open_store
from hrm_agent.store.checkpoints import saver as newest
from hrm_agent.store.checkpoints.saver import StoreSaver
from hrm_agent.store.upkeep.copying import copy_store
from hrm_agent.store.upkeep.maintenance import stats, verify
from hrm_agent.store.upkeep.migrate import migrate
from hrm_agent.store.upkeep.new_store import new_store
from tests.support.store.bodies import is_file
from tests.support.store.processes import writers

THREADS = 5


def on(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


def talking_graph(saver: Any) -> Any:
    graph = StateGraph(MessagesState).add_node(
        "n", lambda _: {"messages": [AIMessage("answer " * 20)]}
    )
    return graph.add_edge(START, "n").compile(checkpointer=saver)


def talking(saver: Any, thread: str, words: str = "hello") -> Any:
    compiled = talking_graph(saver)
    compiled.invoke({"messages": [HumanMessage(words)]}, on(thread))
    return compiled


def stock(folder: Path) -> Path:
    path = folder / "stock.db"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        for number in range(THREADS):
            talking(saver, f"{number}")
    return path


# killed half-way


def migrate_slowly(source: str, target: RunStore, other: Connection) -> None:
    """Migrate half of a store, then wait to be killed."""
    adopt, count = StoreSaver.adopt, 0

    def adopting(saver: StoreSaver, found: Any, paths: Any) -> None:
        nonlocal count
        adopt(saver, found, paths)
        count += 1
        if count == THREADS:
            saver.database.flush()
            other.send("half")
            other.recv()

    StoreSaver.adopt = adopting  # type: ignore[method-assign]
    migrate(source, target)


class MigrateTo:
    """A process's work, which is handed over pickled."""

    def __init__(self, target: str) -> None:
        self._target = target

    def __call__(self, store: RunStore, source: str, other: Connection) -> None:
        with new_store(self._target) as target:
            migrate_slowly(source, target, other)


def test_a_migration_that_is_killed_leaves_nothing(url: str, tmp_path: Path) -> None:
    source = str(stock(tmp_path))
    with writers(f"sqlite:///{tmp_path}/own.db", MigrateTo(url), source) as (process,):
        process.begin()
        assert process.says() == "half"
        process.kill()
    path = Path(url.removeprefix("sqlite:///"))
    if is_file(url):
        assert not path.exists()
    else:
        with open_store(url) as store:
            assert set(stats(store).rows.values()) == {0}
    with new_store(url) as target:
        taken = migrate(source, target)
    assert taken.threads == THREADS and not [*tmp_path.glob("store.db.part*")]
    with open_store(url) as store:
        assert stats(store).rows["checkpoints"] == taken.checkpoints and list(verify(store)) == []


def test_a_migration_that_fails_is_forgotten(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process also forgets which values it had handed in, and writes them again."""
    source, adopt, count = str(stock(tmp_path)), StoreSaver.adopt, 0

    def failing(saver: StoreSaver, found: Any, paths: Any) -> None:
        nonlocal count
        count += 1
        if count == THREADS:
            raise OSError("a disk that is gone")
        adopt(saver, found, paths)

    monkeypatch.setattr(StoreSaver, "adopt", failing)
    with pytest.raises(OSError, match="a disk that is gone"):
        migrate(source, store)
    monkeypatch.setattr(StoreSaver, "adopt", adopt)
    assert set(stats(store).rows.values()) == {0}
    assert migrate(source, store).threads == THREADS
    talking(store.checkpointer, "0", "again")
    assert list(verify(store)) == []


def test_a_new_store_is_not_there_before_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "new.db"
    with open_store(tmp_path / "origin.db") as origin:
        talking(origin.checkpointer, "t")
        with pytest.raises(ZeroDivisionError):
            fill_and_fail(origin, target)
        assert [path.name for path in tmp_path.glob("new.db*")] == []
        target.touch()  # an empty file, as a process leaves it that died early
        with new_store(f"sqlite:///{target}?level=power") as store:
            copy_store(origin, store)
    with new_store(str(target)) as store:
        assert stats(store).rows["checkpoints"] == 3


def test_two_that_make_one_file_leave_each_other_alone(tmp_path: Path) -> None:
    """The first to end gets the file, and the other reports this. Leftovers of a killed one are
    removed.
    """
    target, dead = tmp_path / "new.db", tmp_path / "new.db.part-dead"
    dead.mkdir()
    (dead / "store.db").write_text("half of it")
    with open_store(tmp_path / "origin.db") as origin:
        talking(origin.checkpointer, "t")
        with pytest.raises(StoreError, match="was made by another process meanwhile"):
            copy_beside_another(origin, str(target))
        with open_store(target, create=False) as store:
            assert [thread.thread_id for thread in store.threads()] == ["t"] and list(
                verify(store)
            ) == []
    assert [path.name for path in tmp_path.glob("new.db*")] == ["new.db"]


def copy_beside_another(origin: RunStore, target: str) -> None:
    with new_store(target) as slow:
        with new_store(target) as quick:
            copy_store(origin, quick)
        copy_store(origin, slow)


def test_a_path_may_hold_what_means_something_in_a_url(tmp_path: Path) -> None:
    (tmp_path / "a?b").mkdir()
    target = tmp_path / "a?b" / "new?level=%41.db"
    with open_store(tmp_path / "origin.db") as origin:
        talking(origin.checkpointer, "t")
        with new_store(str(target)) as store:
            copy_store(origin, store)
    with open_store(target, create=False) as store, open_store(store.url, create=False) as again:
        assert [thread.thread_id for thread in again.threads()] == ["t"] and again.path == target
    assert {path.name for path in tmp_path.iterdir()} == {"a?b", "origin.db"}


def fill_and_fail(origin: RunStore, target: Path) -> None:
    with new_store(str(target)) as store:
        copy_store(origin, store)
        assert not target.exists()
        raise ZeroDivisionError


def test_the_log_of_an_earlier_file_is_not_played_back_into_a_new_one(tmp_path: Path) -> None:
    target = tmp_path / "new.db"
    with open_store(target) as earlier:
        talking(earlier.checkpointer, "earlier")
        log = target.with_name("new.db-wal").read_bytes()
    target.unlink()
    target.with_name("new.db-wal").write_bytes(log)
    with open_store(tmp_path / "origin.db") as origin:
        talking(origin.checkpointer, "t")
        with new_store(str(target)) as store:
            copy_store(origin, store)
    with open_store(target, create=False) as store:
        assert [thread.thread_id for thread in store.threads()] == ["t"] and list(
            verify(store)
        ) == []


COPY = """
import sys
from hrm_agent.errors import StoreFullError
from hrm_agent.store import open_store
from hrm_agent.store.upkeep.copying import copy_store
from hrm_agent.store.upkeep.new_store import new_store
try:
    with open_store(sys.argv[1]) as origin, new_store(sys.argv[2]) as store:
        copy_store(origin, store)
        print("copied")
except StoreFullError as error:
    print(error)
"""


@pytest.mark.whole
def test_a_disk_with_room_for_the_log_alone_leaves_no_copy(tmp_path: Path) -> None:
    """All rows are committed to the log, which cannot be written into the file. SQLite then closes
    it silently.
    """
    origin, disk = tmp_path / "origin.db", tmp_path / "disk"
    disk.mkdir()
    with open_store(origin) as store:
        talking(store.checkpointer, "t", "long " * 400_000)
    room = origin.stat().st_size * 3 // 2
    copy = f"{sys.executable} -c '{COPY}' {origin} {disk}/copy.db"
    script = f"mount -t tmpfs -o size={room} none {disk} && {copy} && ls {disk}"
    namespace = (
        ["unshare", "--mount"]
        if os.geteuid() == 0
        else ["unshare", "--user", "--map-root-user", "--mount"]
    )
    done = subprocess.run(
        [*namespace, "sh", "-c", script], capture_output=True, text=True, check=False
    )
    said = (
        f"The disk that is to hold {disk}/copy.db is full. Nothing was written: free some space,"
        " then do it again."
    )
    assert done.stdout.splitlines() == ["copied", said], done.stderr + done.stdout


# an empty file


def test_an_empty_file_is_no_store_to_read_and_one_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    with pytest.raises(
        StoreError, match=r"is not a run store: an empty file, in which nothing was ever stored\."
    ):
        open_store(path, create=False)
    with (
        open_store(tmp_path / "target.db") as target,
        pytest.raises(StoreError, match="is empty: nothing was ever"),
    ):
        migrate(str(path), target)
    assert (
        main(["history", "--store", str(path)]) == 2 and "an empty file" in capsys.readouterr().err
    )
    assert path.stat().st_size == 0
    with open_store(path) as store:
        assert store.threads() == []


# a clock that stands before the one that a thread was written by


@pytest.fixture
def set_back(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the clock back, for LangGraph's IDs and for the store."""
    from langgraph.checkpoint.base import id as ids

    # other tests may have gone ahead of the clock
    monkeypatch.setattr(ids, "_last_v6_timestamp", None)

    def set_back(seconds: float) -> None:
        now, now_ns = time.time, time.time_ns
        monkeypatch.setattr(ids, "_last_v6_timestamp", None)
        monkeypatch.setattr(ids.time, "time_ns", lambda: now_ns() - int(seconds * 1e9))
        monkeypatch.setattr(newest.time, "time", lambda: now() - seconds)

    return set_back


@pytest.mark.parametrize("seconds", [60, 86_400])
def test_a_thread_of_a_clock_that_was_ahead_is_gone_on_with_and_branched(
    seconds: int, url: str, store: RunStore, set_back: Any
) -> None:
    """A process that opened the store later goes on. Its checkpoints are the newest, wherever it
    begins.
    """
    talking(store.checkpointer, "t")
    set_back(seconds)
    with open_store(url) as later:
        graph = talking_graph(later.checkpointer)
        early = [found.config for found in store.checkpointer.list(on("t"))][-2]
        ended = graph.invoke({"messages": [HumanMessage("more")]}, on("t"))
        assert graph.get_state(on("t")).values == ended, "the newest is what was written last"
        set_back(0)
    with open_store(url) as third:
        graph = talking_graph(third.checkpointer)
        edited = graph.update_state(early, {"messages": [HumanMessage("edited")]})
        assert graph.get_state(on("t")).config == edited, (
            "a branch comes after the newest of its thread as well"
        )
        ids = [found.checkpoint["id"] for found in third.checkpointer.list(on("t"))]
    assert list(verify(store)) == [] and len(set(ids)) == len(ids)


def test_so_it_is_of_a_subgraph_s(url: str, store: RunStore, set_back: Any) -> None:
    fails = [True]

    def step(state: MessagesState) -> dict[str, Any]:
        if fails[0]:
            raise ZeroDivisionError
        return {"messages": [AIMessage("done")]}

    inner = StateGraph(MessagesState).add_node("step", step).add_edge(START, "step").compile()
    builder: Any = StateGraph(MessagesState).add_node("inner", inner).add_edge(START, "inner")
    graph = builder.compile(checkpointer=store.checkpointer)
    with pytest.raises(ZeroDivisionError):
        graph.invoke({"messages": [HumanMessage("go")]}, on("t"), durability="sync")
    fails[0] = False
    set_back(3600)
    with open_store(url) as later:
        graph = builder.compile(checkpointer=later.checkpointer)
        ended = graph.invoke(None, on("t"), durability="sync")
        assert [m.content for m in ended["messages"]] == ["go", "done"]
        assert graph.get_state(on("t")).values == ended


def test_a_lower_id_than_the_newest_is_not_written(store: RunStore, set_back: Any) -> None:
    """The checkpoint would be lost, whoever made it."""
    graph = talking(store.checkpointer, "t")
    newest = store.checkpointer.get_tuple(on("t"))
    assert newest is not None
    before = stats(store).rows["checkpoints"]
    set_back(3600)
    with pytest.raises(
        RunError, match=r"clock of this machine stands 3,\d{3}\.\d seconds before .*not written"
    ):
        store.checkpointer.put(
            newest.config, empty_checkpoint(), {"source": "loop", "step": 9, "parents": {}}, {}
        )
    assert stats(store).rows["checkpoints"] == before
    assert graph is not None and list(verify(store)) == []


# nesting


class Holding(TypedDict):
    value: Any


def nested(levels: int, kind: str) -> Any:
    value: Any = "deep"
    for _ in range(levels):
        value = [value] if kind == "list" else {"in": value}
    return value


@pytest.mark.parametrize("kind", ["list", "dict"])
@pytest.mark.parametrize("place", ["channel", "message"])
def test_what_is_nested_too_deeply_is_refused_when_it_is_written(
    kind: str, place: str, store: RunStore
) -> None:
    """Accepted values can be read back, from as deep in Python's stack as a graph is."""

    def value(levels: int) -> Any:
        made = nested(levels, kind)
        return made if place == "channel" else AIMessage("x", additional_kwargs={"value": made})

    levels = iter((100, 500, 5000))
    graph: Any = (
        StateGraph(Holding)
        .add_node("n", lambda _: {"value": value(next(levels))})
        .add_edge(START, "n")
    )
    graph = graph.compile(checkpointer=store.checkpointer)
    graph.invoke({"value": 0}, on("t"))
    assert graph.get_state(on("t")).values == {"value": value(100)}
    for _ in range(2):
        with pytest.raises(
            UnstorableError, match=r"Thread 't' holds a value .*nested .*Nothing was written"
        ):
            graph.invoke({"value": 1}, on("t"))
    assert list(verify(store)) == []
