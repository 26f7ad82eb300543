"""Stores opened read-only: all of it is read, nothing is written, and no process blocks another."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.cli.main import main
from hrm_agent.errors import StoreError, StoreVersionError
from hrm_agent.runtime.time_travel.read_history import history
from hrm_agent.store import RunStore, open_store
from hrm_agent.store.database.read_only import ReadOnlyDatabase
from hrm_agent.store.database.tables import STORE_VERSION
from hrm_agent.store.upkeep.maintenance import verify
from hrm_agent.trajectory import Overlay, RewardScore, Scoring, Verdict
from tests.support.store import writer
from tests.support.store.bodies import execute, is_file, set_version, version_of
from tests.support.store.processes import writers
from tests.support.store.writer import write_thread

KEY, OTHER_KEY = (
    "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=",
    "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=",
)


def fill(store: RunStore, thread: str = "t") -> None:
    write_thread(store, thread)
    id_ = f"id of {thread}"
    overlay = Overlay(
        run_id="r",
        step=0,
        trajectory_id=id_,
        group_id="g",
        reward=1.0,
        verdict=Verdict.KEPT,
        reason="all were kept",
        penalty_error=0.0,
        penalty_format=0.0,
    )
    store.journal.write_overlays([overlay])
    score = RewardScore(name="correct", value=1.0)
    scoring = Scoring(
        trajectory_id=id_, rubric="mine", scores=(score,), outcome=1.0, total=1.0, scored_at=1.0
    )
    store.scorings.write([scoring])


@pytest.fixture
def filled(url: str) -> str:
    with open_store(url) as store:
        fill(store)
    return url


def files_beside(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir()}


def facts(store: RunStore) -> dict[str, Any]:
    """Results of every way to read the store."""
    trajectory = store.journal.trajectory("id of t")
    found = history(store, "t")
    return {
        "trajectory": trajectory,
        "trajectories": list(store.journal.trajectories()),
        "call": store.journal.find_call(trajectory.calls[0].id),
        "tool calls": store.journal.tool_calls(),
        "draws": store.journal.draws_of(trajectory),
        "overlays": store.journal.overlays("r"),
        "scorings": store.scorings.of("id of t"),
        "rubrics": store.scorings.rubrics(),
        "threads": store.threads(),
        "states": [c.checkpoint["channel_values"] for c in store.checkpointer.list(on("t"))],
        "newest": store.checkpointer.get_tuple(on("t")),
        "moments": [(moment.checkpoint_id, moment.values) for moment in found.moments],
        "options": store.options.read("t"),
        "problems": store.database.problems(),
        "size": store.database.size() > 0,
    }


def on(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


def test_all_that_a_writer_reads_is_read(filled: str, tmp_path: Path) -> None:
    with open_store(filled) as store:
        expected = facts(store)
    before = files_beside(tmp_path)
    with open_store(filled, read_only=True) as store:
        assert isinstance(store.database, ReadOnlyDatabase)
        assert facts(store) == expected
    assert files_beside(tmp_path) == before, "no trace of it"


def test_a_writer_that_closes_in_the_midst_of_a_read_leaves_its_log_to_the_next(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store.db"
    last = open_store(path)
    fill(last)
    with open_store(path, read_only=True) as store:
        with store.database.read() as cursor:
            cursor.execute("SELECT count(*) FROM threads").fetchone()
            fill(last, "u")
            last.close()
        assert sorted(files_beside(tmp_path)) == ["store.db", "store.db-shm", "store.db-wal"]
        assert len(store.threads()) == 2, "nothing is missing"
    open_store(path).close()
    assert list(files_beside(tmp_path)) == ["store.db"]
    with open_store(path, read_only=True) as store:
        assert len(store.threads()) == 2


WRITES: dict[str, Callable[[RunStore], object]] = {
    "journal": lambda store: store.journal.write_trajectory(
        writer.trajectory("u", writer.RunStatus.RUNNING)
    ),
    "overlays": lambda store: store.journal.write_overlays([]),
    "lease": lambda store: store.lease("t").__enter__(),
    "checkpointer": lambda store: store.checkpointer.delete_thread("t"),
    "fork": lambda store: store.fork_thread(
        "t", "u", store.checkpointer.get_tuple(on("t")).checkpoint["id"]
    ),
    "graph": lambda store: writer.graph_over(store).invoke({"n": 0, "text": ""}, on("new")),
    "defer": lambda store: store.database.defer(lambda _: None),
    "exclusive": lambda store: store.database.exclusive(lambda _: None),
    "whole": lambda store: store.database.whole().__enter__(),
    "vacuum": lambda store: store.database.vacuum(),
}


@pytest.mark.parametrize("way", WRITES)
def test_what_would_write_is_refused(way: str, filled: str) -> None:
    with open_store(filled, read_only=True) as store:
        with pytest.raises(StoreError, match="opened for reading only"):
            WRITES[way](store)
        with store.database.read() as cursor, pytest.raises(Exception, match=r"(?i)read-?only"):
            cursor.execute("DELETE FROM threads")
    with open_store(filled, read_only=True) as store:
        assert [thread.thread_id for thread in store.threads()] == ["t"]


def test_a_read_inside_a_read_is_of_the_same_moment(filled: str) -> None:
    with open_store(filled) as other, open_store(filled, read_only=True) as store:
        with store.database.read() as cursor:
            assert cursor.execute("SELECT count(*) FROM threads").fetchone() == (1,)
            write_thread(other, "later")
            assert store.journal.find_trajectory("id of later") is None
            assert [thread.thread_id for thread in store.threads()] == ["t"]
        assert store.journal.find_trajectory("id of later") is not None


def test_a_change_is_noticed(filled: str) -> None:
    with open_store(filled) as other, open_store(filled, read_only=True) as store:
        assert isinstance(store.database, ReadOnlyDatabase)
        before = store.database.change_mark()
        for change in (
            lambda: write_thread(other, "later"),
            lambda: other.checkpointer.delete_thread("later"),
            lambda: other.database.write(
                lambda cursor: cursor.execute("UPDATE threads SET status = 'x'")
            ),
        ):
            change()
            assert store.database.change_mark() != before
            before = store.database.change_mark()


def write_and_hold(store: RunStore, name: str, line: Connection) -> None:
    write_thread(store, name)
    line.send("written")
    line.recv()
    write_thread(store, f"{name} again")
    line.send("written again")
    line.recv()


@pytest.mark.whole
def test_it_is_read_while_another_process_writes_and_after_that_was_killed(filled: str) -> None:
    with (
        writers(filled, write_and_hold, "w") as (process,),
        open_store(filled, read_only=True) as store,
    ):
        process.begin()
        assert process.says() == "written"
        assert {thread.thread_id for thread in store.threads()} == {"t", "w"}
        process.line.send("more")
        assert process.says() == "written again"
        assert {thread.thread_id for thread in store.threads()} == {"t", "w", "w again"}
        process.kill()
        assert {thread.thread_id for thread in store.threads()} == {"t", "w", "w again"}
        assert store.journal.trajectory("id of w again").calls
        with open_store(filled, read_only=True) as another:
            assert facts(another)["threads"] == store.threads()


@pytest.mark.parametrize("key", [None, OTHER_KEY])
def test_an_encrypted_store_wants_its_key(key: str | None, url: str) -> None:
    with open_store(url, key=KEY) as store:
        fill(store)
    with pytest.raises(StoreError, match="is encrypted" if key is None else "key does not fit"):
        open_store(url, key=key, read_only=True)
    with open_store(url, key=KEY, read_only=True) as store:
        assert store.journal.trajectory("id of t").calls


def test_a_key_for_a_store_without_one_is_refused(filled: str) -> None:
    with pytest.raises(StoreError, match="not encrypted, but a key was given"):
        open_store(filled, key=KEY, read_only=True)


def test_a_newer_version_is_refused_and_left_as_it_is(filled: str) -> None:
    set_version(filled, STORE_VERSION + 1)
    with pytest.raises(StoreVersionError, match="schema version"):
        open_store(filled, read_only=True)
    assert version_of(filled) == STORE_VERSION + 1


def age(url: str, version: int) -> None:
    """Convert a store to the form of an earlier version."""
    for table in ("draws", "scorings", "options", *(["requests"] if version == 2 else [])):
        execute(url, f"DROP TABLE {table}")
    execute(url, "DROP INDEX IF EXISTS overlays_step")
    if version == 2:
        execute(url, "DROP INDEX IF EXISTS leases_held")
        execute(url, "ALTER TABLE leases DROP COLUMN epoch")
    set_version(url, version)


@pytest.mark.parametrize("version", [2, STORE_VERSION - 1])
def test_an_earlier_version_is_read_and_left_as_it_is(
    version: int, filled: str, tmp_path: Path
) -> None:
    """Data that the earlier version did not store is empty."""
    with open_store(filled) as store:
        expected = facts(store)
    age(filled, version)
    before = files_beside(tmp_path)
    with open_store(filled, read_only=True) as store:
        found = facts(store)
        assert list(verify(store)) == []
    assert found.keys() == expected.keys()
    for name in expected.keys() - {"scorings", "rubrics"}:
        assert found[name] == expected[name], name
    assert (found["scorings"], found["rubrics"]) == ([], [])
    assert version_of(filled) == version and files_beside(tmp_path) == before


@pytest.mark.parametrize("version", [2, STORE_VERSION - 1])
def test_who_writes_brings_an_earlier_version_forward_and_says_so(
    version: int, filled: str, caplog: pytest.LogCaptureFixture
) -> None:
    age(filled, version)
    open_store(filled).close()
    said = (
        f"had schema version {version} and has version {STORE_VERSION} now: earlier versions of"
        " hrm-agent refuse it"
    )
    assert said in caplog.text and version_of(filled) == STORE_VERSION
    caplog.clear()
    open_store(filled).close()
    assert caplog.text == ""


LOOKS = {
    "history": ("history",),
    "history of a thread": ("history", "t"),
    "history --flat": ("history", "t", "--flat"),
    "show": ("show", "t"),
    "lint": ("lint", "{store}"),
    "export": ("export", "{store}", "--out", "{out}"),
    "diff": ("diff", "t", "t"),
    "stats": ("store", "stats", "{store}"),
    "verify": ("store", "verify", "{store}"),
    "prune --dry-run": ("store", "prune", "{store}", "--older-than", "1d", "--dry-run"),
    "copy": ("store", "copy", "{store}", "{out}.db"),
    "replay --check": ("replay", "--check", "{store}"),
    "replay": ("replay", "t"),
    "fork --dry-run": ("fork", "t", "--graph", "m:g", "--dry-run"),
    "eval": ("eval", "{store}"),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_changes_no_file_and_leaves_none(
    look: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Holds for a store of this version and of an earlier one, whether the command succeeds or not."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "kept"
    path = folder / "store.db"
    with open_store(path) as store:
        fill(store)
    words = [word.format(store=path, out=tmp_path / "out.jsonl") for word in LOOKS[look]]
    words += [] if any(str(path) in word for word in words) else ["--store", str(path)]
    codes: list[int] = []
    for version in (STORE_VERSION, 2):
        if version == 2:
            age(f"sqlite:///{path}", version)
            for made in tmp_path.glob("out*"):
                made.unlink()
        before = {each.name: each.read_bytes() for each in folder.iterdir()}
        codes.append(main(words))
        assert {each.name: each.read_bytes() for each in folder.iterdir()} == before, version
        said = capsys.readouterr()
        assert "earlier version" not in said.err and "reading only" not in said.err
    assert codes[0] == codes[1]


def test_a_command_that_ends_soon_sees_what_is_written_between_its_reads(tmp_path: Path) -> None:
    """The connection is kept. Reads are current before, beside and after a writer."""
    path = tmp_path / "store.db"
    with open_store(path) as store:
        fill(store)
    os.utime(path, (1e9, 1e9))  # long ago
    with open_store(path, read_only=True) as looking:
        database: Any = looking.database
        database.keeps_connections = True
        for number in range(3):
            assert len(looking.threads()) == len(looking.threads()) == number + 1
            with open_store(path) as store:
                fill(store, f"u{number}")
                assert len(looking.threads()) == number + 2
        assert len(looking.threads()) == 4


def test_an_index_that_is_missing_is_made_by_a_writer_and_not_needed_by_a_reader(
    filled: str,
) -> None:
    table = "sqlite_master WHERE name" if is_file(filled) else "pg_class WHERE relname"
    there = f"SELECT count(*) FROM {table} = 'overlays_step'"
    assert execute(filled, there) == [(1,)]
    execute(filled, "DROP INDEX overlays_step")
    with open_store(filled, read_only=True) as store:
        assert len(store.journal.overlays("r", 0)) == 1
    assert execute(filled, there) == [(0,)]
    open_store(filled).close()
    assert execute(filled, there) == [(1,)]
    assert version_of(filled) == STORE_VERSION


def test_a_database_without_a_store_is_refused_and_none_is_made(url: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="There is no store at"):
        open_store(url, read_only=True)
    assert list(tmp_path.iterdir()) == []


# SQLite alone


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with open_store(tmp_path / "store.db") as store:
        fill(store)
    return tmp_path / "store.db"


def test_another_program_s_file_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "theirs.db")) as connection:
        connection.execute("CREATE TABLE things (a)")
    (tmp_path / "text.db").write_text("no database at all, " * 100)
    (tmp_path / "empty.db").touch()
    (tmp_path / "folder.db").mkdir()
    for name, said in (
        ("theirs.db", "another program"),
        ("text.db", "not a run store"),
        ("empty.db", "nothing was ever stored"),
        ("folder.db", "There is no store at"),
    ):
        with pytest.raises(StoreError, match=said):
            open_store(tmp_path / name, read_only=True)


def test_a_file_that_vanishes_or_is_replaced_is_told(path: Path, tmp_path: Path) -> None:
    with open_store(tmp_path / "other.db") as other:
        fill(other, "u")
    with open_store(path, read_only=True) as store:
        assert isinstance(store.database, ReadOnlyDatabase)
        before = store.database.change_mark()
        path.rename(tmp_path / "away.db")
        with pytest.raises(StoreError, match="not there any more"):
            store.threads()
        assert store.database.is_gone()
        assert store.database.change_mark() != before
        shutil.copy(tmp_path / "other.db", path)
        with pytest.raises(StoreError, match="replaced by another file"):
            store.threads()
        path.unlink()
        (tmp_path / "away.db").rename(path)
        assert not store.database.is_gone(), "the same file is back"
        assert [thread.thread_id for thread in store.threads()] == ["t"]


def test_a_writer_that_closes_leaves_a_whole_file_while_somebody_looks(
    path: Path, tmp_path: Path
) -> None:
    """A reader that held a connection would prevent the writer from merging its log into the file."""
    with open_store(path, read_only=True) as store:
        assert len(store.threads()) == 1
        with open_store(path) as other:
            write_thread(other, "later")
            assert len(store.threads()) == 2
        assert sorted(file.name for file in tmp_path.iterdir()) == ["store.db"]
        assert len(store.threads()) == 2


def test_a_writer_that_closes_during_a_read_leaves_a_whole_file_as_well(
    path: Path, tmp_path: Path
) -> None:
    other = open_store(path)
    write_thread(other, "later")
    with open_store(path, read_only=True) as store, store.database.read():
        other.close()
        assert len(store.threads()) == 2
    # without the log, which the reader kept from being removed
    shutil.copy(path, tmp_path / "copy.db")
    with open_store(tmp_path / "copy.db", read_only=True) as copy:
        assert copy.journal.trajectory("id of later").calls


def test_what_was_mixed_with_a_writer_s_is_not_taken_for_sound(path: Path) -> None:

    def read_while_another_writes(store: RunStore) -> None:
        with store.database.read() as cursor:
            cursor.execute("SELECT count(*) FROM threads")
            with open_store(path) as other:
                write_thread(other, "later")
            cursor.execute("SELECT count(*) FROM calls")

    with open_store(path, read_only=True) as store:
        with pytest.raises(StoreError, match="written to while it was being read"):
            read_while_another_writes(store)
        assert len(store.threads()) == 2, "read again, it is"


def test_a_folder_in_which_nobody_may_write(path: Path, tmp_path: Path) -> None:
    path.chmod(stat.S_IRUSR)
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with open_store(path, read_only=True) as store:
            assert store.journal.trajectory("id of t").calls
    finally:
        tmp_path.chmod(stat.S_IRWXU)


def test_options_of_a_url_and_a_path_that_needs_quoting(tmp_path: Path) -> None:
    odd = tmp_path / "a%20b?#c"
    odd.mkdir()
    with open_store(odd / "store.db") as store:
        fill(store)
        url = store.url
    with open_store(f"{url}?level=power", read_only=True) as store:
        assert len(store.threads()) == 1
    assert [file.name for file in odd.iterdir()] == ["store.db"]
