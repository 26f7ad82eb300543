"""The run store: what is written comes back, hostile rows do not run, a full disk loses nothing
that was committed.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import ormsgpack
import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph

from hrm_agent.errors import StoreError, StoreVersionError
from hrm_agent.store import RunStore, open_store
from hrm_agent.store.database.tables import STORE_VERSION
from hrm_agent.store.values.value_reader import MSGPACK
from hrm_agent.testing import block_until
from hrm_agent.trajectory import (
    BranchReason,
    Call,
    GraphIdentity,
    LogprobKind,
    Overlay,
    RunStatus,
    Sampling,
    TaskRef,
    ToolCall,
    ToolStatus,
    Trajectory,
    Verdict,
    call_id,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with open_store(tmp_path / "store.db") as opened:
        yield opened


def a_call(
    index: int = 0, parent: str | None = None, thread: str = "thread", seed: int | None = 2**62
) -> Call:
    return Call(
        id=call_id(thread, "task", index),
        identity=GraphIdentity(thread_id=thread, task_id="task", node="n"),
        call_index=index,
        request_hash=f"request {index}",
        model="m",
        parent=parent,
        branch_reason=None if parent else BranchReason.ROOT,
        token_ids=(1, 2**31 - 1, 3),
        mask=(False, True, True),
        logprobs=(0.0, -0.25, -1.5),
        logprob_kind=LogprobKind.RAW,
        sampling=Sampling(seed=seed),
        response={"content": "surrogate-free text \u2028 and a nul \x00", "type": "ai"},
        started_at=1.0,
        ended_at=2.0,
    )


def a_trajectory(thread: str = "thread", status: RunStatus = RunStatus.RUNNING) -> Trajectory:
    return Trajectory(
        id=f"id of {thread}",
        thread_id=thread,
        run_id="run",
        task=TaskRef(id="1", family="f", prompt="p"),
        graph="g",
        policy="p",
        status=status,
        started_at=0.0,
    )


def test_a_trajectory_is_put_together_from_what_was_written(store: RunStore) -> None:
    first, tool = a_call(), a_tool_call()
    second = a_call(1, parent=first.id)
    store.journal.write_trajectory(a_trajectory())
    for call in (first, second):
        store.journal.write_call(call)
    store.journal.write_tool_call(tool)
    finished = tool.model_copy(update={"status": ToolStatus.OK, "content": "42"})
    store.journal.write_tool_call(finished)
    read = store.journal.trajectory("id of thread")
    assert read == a_trajectory().model_copy(
        update={"calls": (first, second), "tool_calls": (finished,)}
    )
    assert store.journal.find_trajectory("thread") == read
    assert store.journal.path_tokens(second.id) == first.token_ids + second.token_ids
    assert store.journal.seeds_of_thread("thread") == {2**62}
    assert store.journal.find_repeat("thread", "python", {"code": "1"}) == tool.id
    assert store.journal.find_repeat("thread", "python", {"code": "2"}) is None


def a_tool_call() -> ToolCall:
    identity = GraphIdentity(thread_id="thread", task_id="task")
    return ToolCall(
        id="tool", identity=identity, tool_call_id="t", name="python", arguments={"code": "1"}
    )


def test_trajectories_are_found_by_run_and_status(store: RunStore) -> None:
    store.journal.write_trajectory(a_trajectory("one"))
    store.journal.write_trajectory(a_trajectory("two", RunStatus.FAILED))
    assert [t.thread_id for t in store.journal.trajectories(run_id="run")] == ["one", "two"]
    assert [t.thread_id for t in store.journal.trajectories(status=RunStatus.FAILED)] == ["two"]
    assert list(store.journal.trajectories(run_id="other")) == []
    with pytest.raises(StoreError, match="no trajectory 'three'"):
        store.journal.trajectory("three")


def test_a_step_judged_again_replaces_its_judgement(store: RunStore) -> None:
    def overlay(reason: str) -> Overlay:
        return Overlay(
            run_id="run",
            step=0,
            trajectory_id="t",
            group_id="g",
            reward=1.0,
            verdict=Verdict.KEPT,
            reason=reason,
            penalty_error=0.0,
            penalty_format=0.0,
        )

    store.journal.write_overlays([overlay("first")])
    store.journal.write_overlays([overlay("second")])
    assert [o.reason for o in store.journal.overlays("run")] == ["second"]


def test_a_judgement_keeps_what_calls_were_credited_with_where_they_differ(
    store: RunStore, tmp_path: Path
) -> None:
    """A judgement without credit is written as by earlier versions, which refuse unknown fields."""
    plain = Overlay(
        run_id="run", step=0, trajectory_id="a", group_id="g", reward=1.0, verdict=Verdict.KEPT, reason="x",
        penalty_error=0.0, penalty_format=0.0, advantage=0.5,
    )  # fmt: skip
    credited = plain.model_copy(
        update={"trajectory_id": "b", "credit": {"call": 0.25, "other": -1.0}}
    )
    none = plain.model_copy(update={"trajectory_id": "c", "credit": {}})
    store.journal.write_overlays([plain, credited, none])
    assert store.journal.overlays("run") == [plain, credited, none]
    with closing(sqlite3.connect(tmp_path / "store.db")) as file:
        records = [
            bytes(row[0]) for row in file.execute("SELECT record FROM overlays ORDER BY seq")
        ]
    assert [b"credit" in record for record in records] == [False, True, True]


def test_threads_write_side_by_side(store: RunStore) -> None:
    def write(number: int) -> None:
        for index in range(20):
            store.journal.write_call(a_call(index, thread=f"thread {number}"))

    writers = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert all(len(store.journal.calls_of_task(f"thread {n}", "task")) == 20 for n in range(8))


def test_a_closed_store_refuses_at_once(url: str) -> None:
    """A write that is never committed would otherwise be waited for without end, or be lost
    silently.
    """
    for options in ("", "?level=power") if url.startswith("sqlite") else ("",):
        store = open_store(f"{url}{options}")
        store.close()
        database = store.database
        for use in (
            lambda: database.submit(str).result(timeout=5),
            lambda: database.defer(str),
            store.threads,
        ):
            with pytest.raises(StoreError, match="is closed"):
                use()
        store.close()


def test_what_is_handed_in_while_a_store_closes_is_committed_or_refused(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/store.db?level=power")
    futures: list[Future[Any]] = []

    def write() -> None:
        with suppress(StoreError):
            for _ in range(100_000):
                futures.append(store.database.submit(str))

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    block_until(lambda: len(futures) > 100)
    store.close()
    for writer in writers:
        writer.join()
    for future in futures:
        error = future.exception(timeout=5)
        assert error is None or "is closed" in str(error)


def test_a_store_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    open_store(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version={STORE_VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(StoreVersionError, match=f"schema version {STORE_VERSION + 1}"):
        open_store(path)
    assert path.read_bytes() == before


def test_what_is_no_store_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database, but long enough to be looked at" * 100)
    with pytest.raises(StoreError, match="is not a run store"):
        open_store(tmp_path / "text.db")
    with pytest.raises(StoreError, match="no store at"):
        open_store(tmp_path / "missing.db", create=False)
    with pytest.raises(StoreError, match="is not a store that this version can open"):
        open_store("redis://localhost/x")
    (tmp_path / "store.url").write_bytes(b"\0\0")
    with pytest.raises(StoreError, match=r"store\.url is empty"):
        open_store(tmp_path)


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_the_file_of_another_program_is_refused_and_left_alone(
    mode: str, create: bool, tmp_path: Path
) -> None:
    path = tmp_path / "addresses.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute(f"PRAGMA journal_mode={mode}")
        other.execute("CREATE TABLE people (name TEXT)")
        other.execute("INSERT INTO people VALUES ('Ada')")
        other.commit()
        (tmp_path / "copy").mkdir()
        # in WAL mode with what is not in the main file yet
        for file in tmp_path.glob("addresses.db*"):
            shutil.copy(file, tmp_path / "copy")
    path = tmp_path / "copy" / "addresses.db"
    (tmp_path / "copy" / "addresses.db-shm").unlink(missing_ok=True)
    kept = [file for file in (path, Path(f"{path}-wal")) if file.exists()]
    before = [file.read_bytes() for file in kept]
    with pytest.raises(StoreError, match="is not a run store: an SQLite file of another program"):
        open_store(path, create=create)
    assert [file.read_bytes() for file in kept] == before


def test_an_empty_file_is_a_store_only_where_one_may_be_made(tmp_path: Path) -> None:
    path = tmp_path / "a ?#%.db"
    path.touch()
    with pytest.raises(StoreError, match="is not a run store: an empty file"):
        open_store(path, create=False)
    assert path.read_bytes() == b""
    open_store(path).close()
    open_store(path, create=False).close()


def test_a_store_whose_making_was_cut_short_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    open_store(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("DROP TABLE overlays; PRAGMA user_version = 0")
    with open_store(path) as store:
        assert list(store.journal.overlays(run_id="run")) == []


class Plain(TypedDict):
    value: Any


@dataclass
class Own:
    number: int


class Typed(TypedDict):
    value: Own


def test_a_forged_checkpoint_does_not_run(store: RunStore, tmp_path: Path) -> None:
    """A row that would call `os.system` on load, by the msgpack extension that LangGraph uses for
    constructors.
    """
    graph = StateGraph(Plain).add_node("n", lambda state: state).add_edge(START, "n").compile()
    graph = graph.copy(update={"checkpointer": store.checkpointer.allowing(graph)})
    config: Any = {"configurable": {"thread_id": "t"}}
    graph.invoke({"value": "harmless"}, config)
    witness = tmp_path / "ran"
    forged = ormsgpack.packb(
        ormsgpack.Ext(0, ormsgpack.packb(("os", "system", f"touch {witness}")))
    )
    with sqlite3.connect(store.path) as connection:
        for seq, manifest in connection.execute("SELECT seq, manifest FROM checkpoints").fetchall():
            rest, channels = ormsgpack.unpackb(manifest)
            channels = [[name, version, [MSGPACK, forged]] for name, version, _ in channels]
            connection.execute(
                "UPDATE checkpoints SET manifest = ? WHERE seq = ?",
                (ormsgpack.packb([rest, channels]), seq),
            )
    JsonPlusSerializer(allowed_msgpack_modules=True).loads_typed(("msgpack", forged))
    assert witness.exists(), (
        "the forgery is not even dangerous to a serializer that allows everything"
    )
    witness.unlink()
    with pytest.raises(StoreError, match=r"Thread 't', checkpoint .*os\.system"):
        graph.get_state(config)
    assert not witness.exists(), "the forged constructor was called"


def test_types_that_a_graph_declares_are_known_to_the_checkpointer_it_is_compiled_with(
    store: RunStore,
) -> None:
    graph = (
        StateGraph(Typed)
        .add_node("n", lambda state: state)
        .add_edge(START, "n")
        .compile(store.checkpointer)
    )
    config: Any = {"configurable": {"thread_id": "t"}}
    graph.invoke({"value": Own(3)}, config)
    assert graph.get_state(config).values["value"] == Own(3)


def test_what_could_not_be_read_back_is_not_written(store: RunStore) -> None:
    graph = StateGraph(Plain).add_node("n", lambda _: {"value": [Own(3)]}).add_edge(START, "n")
    config: Any = {"configurable": {"thread_id": "t"}}
    with pytest.raises(
        StoreError, match=r"Thread 't' holds a value of the type .*Own, which is not allowed"
    ):
        graph.compile(store.checkpointer).invoke({"value": 1}, config)
    name = f"{Own.__module__}:{Own.__qualname__}"
    with open_store(store.path, allow=[name]) as allowing:
        again = graph.compile(allowing.checkpointer)
        again.invoke(None, config)
        assert again.get_state(config).values["value"] == [Own(3)]


def test_types_that_the_graph_declares_are_read_back(store: RunStore) -> None:
    graph = StateGraph(Typed).add_node("n", lambda state: state).add_edge(START, "n").compile()
    graph = graph.copy(update={"checkpointer": store.checkpointer.allowing(graph)})
    config: Any = {"configurable": {"thread_id": "t"}}
    graph.invoke({"value": Own(3)}, config)
    assert graph.get_state(config).values["value"] == Own(3)


FILL = """
import json, sys
from pathlib import Path
from hrm_agent.errors import StoreFullError
from hrm_agent.store import open_store
from tests.store.test_store import a_call, a_trajectory

written = 0
with open_store(Path(sys.argv[1]) / "store.db") as store:
    store.journal.write_trajectory(a_trajectory())
    try:
        for index in range(100_000):
            store.journal.write_call(a_call(index))
            written += 1
    except StoreFullError as error:
        print(json.dumps({"written": written, "message": str(error)}))
        raise SystemExit(0)
print(json.dumps({"written": written, "message": ""}))
"""


@pytest.mark.whole
def test_a_full_disk_is_said_and_loses_nothing(tmp_path: Path) -> None:
    """The disk is a tmpfs of 1 MiB in its own mount namespace. The file is then copied out and
    read.
    """
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    kept.mkdir()
    script = (
        f"mount -t tmpfs -o size=1m none {disk} && {sys.executable} -c '{FILL}' {disk} && cp"
        f" {disk}/store.db* {kept}/"
    )
    namespace = (
        ["unshare", "--mount"]
        if os.geteuid() == 0
        else ["unshare", "--user", "--map-root-user", "--mount"]
    )
    done = subprocess.run(
        [*namespace, "sh", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert "is full" in said["message"] and "hrm-agent resume" in said["message"]
    with open_store(kept) as store:
        assert len(store.journal.calls_of_task("thread", "task")) == said["written"] > 10
    with sqlite3.connect(kept / "store.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_work_that_fails_each_time_does_not_stop_those_after_it(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hrm_agent.store.database.database._LATER_SECONDS", 60.0)

    def broken(_: object) -> None:
        raise StoreError("a damaged row", "")

    store.database.defer(broken)
    store.database.defer(lambda cursor: cursor.execute("INSERT INTO meta VALUES ('after', '1')"))
    with pytest.raises(StoreError, match="a damaged row"):
        store.journal.write_call(a_call(0))
    store.journal.write_call(a_call(1))
    with store.database.read() as cursor:
        assert cursor.execute("SELECT value FROM meta WHERE key = 'after'").fetchone() == ("1",)
    assert [call.call_index for call in store.journal.calls_of_task("thread", "task")] == [1]
