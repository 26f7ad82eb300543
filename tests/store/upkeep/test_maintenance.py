"""Maintenance of a store: deleted and kept data, the view of a second process, and detection of
every kind of damage.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from hrm_agent.cli.main import main
from hrm_agent.errors import StoreError
from hrm_agent.store import RunStore, open_store
from hrm_agent.store.database import leases
from hrm_agent.store.database.leases import CHAT, COMMAND
from hrm_agent.store.upkeep.maintenance import (
    collect_values,
    count_loose_values,
    delete_runs,
    prune,
    prune_steps,
    stats,
    verify,
)
from hrm_agent.store.values.packed_records import (
    packed,
    packed_mask,
    packed_numbers,
    plain_mask,
    plain_numbers,
    plain_record,
)
from hrm_agent.store.values.value_reader import LIST, MSGPACK
from hrm_agent.trajectory import ForkRef, Overlay, RunStatus, StopReason, Trajectory, Verdict
from hrm_agent.trajectory.forest import path_to, path_tokens
from tests.support.store.bodies import execute, stored_bytes
from tests.support.store.processes import writers
from tests.support.trajectory.samples import make_call, make_tool_call, make_trajectory

DAY = 86400.0


@pytest.fixture
def file(tmp_path: Path) -> Iterator[RunStore]:
    """SQLite store, for tests that do not depend on the backend."""
    with open_store(tmp_path / "file.db") as opened:
        yield opened


def on(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


def answer(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"answer {len(state['messages'])} " + "and so on " * 20)]}


def talk(store: RunStore, thread: str, *words: str) -> list[BaseMessage]:
    """Run a conversation with a turn for each of `words`, and return its final messages. Equal
    words make equal values.
    """
    graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer")
    graph = graph.compile(checkpointer=store.checkpointer)
    for number, word in enumerate(words):
        message = HumanMessage(f"{word} " * 30, id=f"{word} {number}")
        graph.invoke({"messages": [message]}, on(thread))
    return messages(store, thread)


def messages(store: RunStore, thread: str) -> list[BaseMessage]:
    found = store.checkpointer.get_tuple(on(thread))
    return found.checkpoint["channel_values"]["messages"] if found else []


def sound(store: RunStore, but: str = "") -> bool:
    found = [finding for finding in verify(store) if finding != but]
    assert found == []
    return True


def run(
    store: RunStore,
    thread: str,
    ended: float = 1.0,
    status: RunStatus = RunStatus.COMPLETED,
    of: str = "",
) -> Trajectory:
    """Write a sound trajectory on its own thread, with checkpoints. It is a fork of that on thread
    `of`, if given.
    """
    talk(store, thread, thread, "a second turn")
    identity = make_call("task").identity.model_copy(update={"thread_id": thread})
    facts: dict[str, Any] = {"ended_at": ended, "started_at": ended - 1, "status": status}
    if status is not RunStatus.COMPLETED:
        facts |= {
            "answer": None,
            "error": "an error" if status is RunStatus.FAILED else None,
            "stop_reason": None if status is RunStatus.RUNNING else StopReason.ERROR,
        }
    call = make_call("task", identity=identity, started_at=ended - 1, ended_at=ended)
    origin = ForkRef(trajectory_id=f"id of {of}", checkpoint_id="c") if of else None
    made = make_trajectory(
        id=f"id of {thread}",
        thread_id=thread,
        calls=(call,),
        tool_calls=(),
        forked_from=origin,
        **facts,
    )
    store.journal.write_trajectory(made)
    store.journal.write_call(call)
    return made


def judge(store: RunStore, thread: str) -> None:
    overlay = Overlay(
        run_id="training",
        step=0,
        trajectory_id=f"id of {thread}",
        group_id="g",
        reward=1.0,
        verdict=Verdict.KEPT,
        reason="r",
        penalty_error=0.0,
        penalty_format=0.0,
    )
    store.journal.write_overlays([overlay])


def threads(store: RunStore) -> set[str]:
    return {thread.thread_id for thread in store.threads()}


# what goes with a thread


SECRET = "a word of the one who leaves"
EVENTS = 4
"""Number of moments of a deletion at which its process is killed."""


def forget(store: RunStore, name: str, line: Connection) -> None:
    """Delete the thread `leaves`, by `delete` or `prune`, and die after a given number of calls of
    the store's functions.
    """
    how, _, moment = name.partition(" ")
    left = int(moment or 0)
    calls = 0

    def count(frame: Any, event: str, _: Any) -> None:
        nonlocal calls
        if event == "call" and "/hrm_agent/store/" in frame.f_code.co_filename:
            calls += 1
            if left and calls == left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    if how == "delete":
        delete_runs(store, ["leaves"])
    else:
        prune(store, older_than_seconds=DAY)
    sys.setprofile(None)
    line.send(str(calls))


def forgets(url: str, name: str) -> str:
    """Output of a deletion in another process (empty if it was killed)."""
    with writers(url, forget, name) as (writer,):
        writer.begin()
        try:
            return writer.says()
        except EOFError:
            return ""


@pytest.mark.parametrize("how", ["delete", "prune"])
def test_a_deletion_that_is_killed_took_all_or_nothing(how: str, url: str, store: RunStore) -> None:
    """The kill may come at any moment. To another process, the thread is then whole or completely
    removed.
    """

    def begin() -> None:
        talk(store, "leaves", SECRET, SECRET)
        run(store, "leaves", ended=1.0)
        store.database.flush()

    run(store, "stays", ended=time.time())
    begin()
    calls = int(forgets(url, how))
    outcomes: set[bool] = set()
    for moment in {1 + calls * number // EVENTS for number in range(EVENTS)} | {calls}:
        if "leaves" not in threads(store):
            begin()
        assert forgets(url, f"{how} {moment}") == ""
        gone = "leaves" not in threads(store)
        assert gone != (SECRET.encode() in rows_in(url)), f"killed at {moment} of {calls}"
        assert sound(store) and count_loose_values(store) == 0
        outcomes.add(gone)
    assert outcomes == {True, False}


def rows_in(url: str) -> bytes:
    return b"".join(data for (data,) in execute(url, "SELECT data FROM blobs"))


def test_words_of_what_is_deleted_do_not_stay_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with open_store(path) as store:
        talk(store, "leaves", *[SECRET * 200] * 5)
        run(store, "stays")
        store.database.flush()
        assert SECRET.encode() in stored_bytes(f"sqlite:///{path}")
        delete_runs(store, ["leaves"])
        assert SECRET.encode() not in stored_bytes(f"sqlite:///{path}"), (
            "nor in its log, while it is open"
        )


@pytest.mark.parametrize("how", ["delete", "prune", "vacuum"])
def test_values_that_were_left_are_told_and_go_with_the_next_care(
    how: str, url: str, store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Values are left by the checkpointer's own deletion, or by a version killed between deletion
    and collection.
    """
    run(store, "stays", ended=time.time())
    talk(store, "leaves", SECRET)
    talk(store, "another", "word")
    store.checkpointer.delete_thread("leaves")
    assert SECRET.encode() in rows_in(url)
    assert main(["store", "verify", url]) == 0
    assert re.search(
        r"sound: .*\n\d+ unreferenced values: `hrm-agent store vacuum",
        capsys.readouterr().out,
    )
    if how == "delete":
        assert main(["store", "delete", "another", "--store", url]) == 0
    elif how == "prune":
        assert main(["store", "prune", url, "--older-than", "9000d"]) == 0
    else:
        assert main(["store", "vacuum", url]) == 0
    assert SECRET.encode() not in rows_in(url)
    capsys.readouterr()
    assert main(["store", "verify", url]) == 0 and "unreferenced" not in capsys.readouterr().out


def test_beneath_damage_threads_go_and_their_values_when_it_is_mended(
    url: str, store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(store, "leaves", SECRET)
    talk(store, "damaged", "word")
    execute(
        url, "UPDATE checkpoints SET manifest = ? WHERE thread_id = 'damaged'", (b"no manifest",)
    )
    assert main(["store", "delete", "leaves", "--store", url]) == 2
    assert "No values were collected" in capsys.readouterr().err and threads(store) == {"damaged"}
    assert main(["store", "delete", "damaged", "--store", url]) == 0
    assert SECRET.encode() not in rows_in(url)


def test_values_of_deleted_threads_go_and_those_of_live_ones_stay(store: RunStore) -> None:
    kept = talk(store, "stays", "shared", "own")
    alone = stats(store).rows
    talk(store, "goes", "shared", "other", "another")
    both = stats(store).rows
    freed = delete_runs(store, ["goes"])
    after = stats(store).rows
    assert freed == both["values"] - after["values"] > 0
    assert after == alone, "all that the second brought has gone"
    assert messages(store, "stays") == kept and messages(store, "goes") == []
    assert sound(store) and threads(store) == {"stays"}
    assert collect_values(store) == 0


def test_what_was_recorded_of_a_thread_without_a_trajectory_goes_with_it(store: RunStore) -> None:
    """A graph that is run on the bare checkpointer, whose model records its calls."""
    before = stats(store).rows
    identity = make_call("task").identity.model_copy(update={"thread_id": "t"})
    for delete in (
        lambda: delete_runs(store, ["t"]),
        lambda: store.checkpointer.delete_thread("t"),
    ):
        talk(store, "t", "hello")
        store.journal.write_call(
            make_call("task", identity=identity), [HumanMessage("sent " * 200)]
        )
        store.journal.write_tool_call(make_tool_call(identity=identity))
        delete()
        collect_values(store)
        assert stats(store).rows == before and threads(store) == set()


def test_a_thread_begun_again_at_once_is_there(store: RunStore) -> None:
    """The process that deleted the thread begins it in the same second, from the same messages."""
    for delete in (
        delete_runs,
        lambda store, names: store.checkpointer.prune(names, strategy="delete"),
    ):
        talk(store, "t", "hello", "again")
        delete(store, ["t"])
        collect_values(store)
        assert threads(store) == set()
        assert len(talk(store, "t", "hello", "again")) == 4
        assert threads(store) == {"t"} and sound(store)


def test_a_process_goes_on_where_its_thread_was_deleted(store: RunStore) -> None:
    """Values of its last checkpoint were collected, and the process noticed it when it wrote
    elsewhere.
    """
    talk(store, "t", "hello", "again")
    newest = store.checkpointer.get_tuple(on("t"))
    assert newest is not None
    delete_runs(store, ["t"])
    talk(store, "elsewhere", "something else")
    new = {**newest.checkpoint, "id": str(uuid6())}
    store.checkpointer.put(newest.config, new, newest.metadata, {})
    assert messages(store, "t") == newest.checkpoint["channel_values"]["messages"]
    assert sound(store)


def obey(store: RunStore, _: str, other: Connection) -> None:
    """Process that executes commands: `talk THREAD WORD...`, `go-on THREAD` (its last checkpoint
    again, under the next ID).
    """
    remembered: dict[str, Any] = {}
    while said := other.recv():
        command, thread, *words = said.split()
        if command == "talk":
            talk(store, thread, *words)
            remembered[thread] = store.checkpointer.get_tuple(on(thread))
        if command == "go-on":
            before = remembered[thread]
            for task in ("one", "two", "three"):  # these and the checkpoint are one transaction
                values = before.checkpoint["channel_values"]["messages"]
                store.checkpointer.put_writes(before.config, [("messages", values)], task)
            new = {**before.checkpoint, "id": str(uuid6())}
            store.checkpointer.put(before.config, new, before.metadata, {})
        other.send("obeyed")


def test_what_another_process_collected_is_written_again(url: str) -> None:
    """A process that knows of values, and keeps referring to them, while another deletes and
    collects.
    """
    with open_store(url) as store, writers(url, obey, "second") as (second,):
        second.begin()

        def tell(words: str) -> None:
            second.line.send(words)
            assert second.says() == "obeyed"

        tell("talk a hello again")
        expected = messages(store, "a")
        assert delete_runs(store, ["a"]) > 0
        tell("talk b hello again")  # the same values on another thread
        assert [m.content for m in messages(store, "b")] == [m.content for m in expected]
        assert sound(store)
        assert delete_runs(store, ["b"]) > 0
        tell("go-on b")  # on from a checkpoint that is gone, in one transaction with writes
        assert sound(store, "writes of thread b: their checkpoint is lost")
        assert [m.content for m in messages(store, "b")] == [m.content for m in expected]
        assert delete_runs(store, ["b"]) > 0
        tell("talk c another word")  # it notices here,
        tell("go-on a")  # and still remembers these
        assert sound(store, "writes of thread a: their checkpoint is lost")
        assert [m.content for m in messages(store, "a")] == [m.content for m in expected]
        second.line.send("")
        assert second.says() == "done"


# pruning


def test_pruning_by_age_and_status(file: RunStore) -> None:
    now = time.time()
    run(file, "old", now - 40 * DAY)
    run(file, "old failure", now - 40 * DAY, RunStatus.FAILED)
    run(file, "new", now - DAY)
    run(file, "new failure", now - DAY, RunStatus.FAILED)
    run(file, "old running", now - 40 * DAY, RunStatus.RUNNING)
    talk(file, "bare", "a thread without a trajectory")

    def due(**options: Any) -> set[str]:
        return set(prune(file, dry_run=True, **options).thread_ids)

    assert due(older_than_seconds=30 * DAY) == {"old", "old failure"}
    assert due(older_than_seconds=0) == {"old", "old failure", "new", "new failure"}
    assert due(status=[RunStatus.FAILED]) == {"old failure", "new failure"}
    assert due(status=[RunStatus.FAILED], older_than_seconds=30 * DAY) == {"old failure"}
    assert due(status=[RunStatus.RUNNING, RunStatus.FAILED], older_than_seconds=30 * DAY) == {
        "old failure",
        "old running",
    }
    assert due(older_than_seconds=50 * DAY) == set()
    assert len(threads(file)) == 6, "a dry run takes nothing"
    before = stats(file)
    pruned = prune(file, older_than_seconds=30 * DAY)
    after = stats(file)
    assert pruned.freed == before.rows["values"] - after.rows["values"] > 0
    assert threads(file) == {"new", "new failure", "old running", "bare"}
    assert (before.rows["model calls"], after.rows["model calls"]) == (5, 3)
    assert (before.rows["tokens"], after.rows["tokens"]) == (5, 3)
    assert messages(file, "old") == [] and messages(file, "new") != [] and sound(file)


def test_pruning_keeps_what_others_need(file: RunStore) -> None:
    """Judged runs, active runs and origins of remaining runs (over two forks) are kept."""
    for thread in ("judged", "origin", "leased", "talked", "worked", "nobody's"):
        run(file, thread)
    run(file, "fork", of="origin")
    run(file, "fork of the fork", time.time(), of="fork")
    run(file, "fork that goes", of="judged")
    judge(file, "judged")
    with file.lease("leased"), file.lease("talked", CHAT), file.lease("worked", COMMAND):
        with pytest.raises(StoreError, match="is being run"):
            delete_runs(file, ["talked"])
        pruned = prune(file, older_than_seconds=DAY)
    assert set(pruned.thread_ids) == {"nobody's", "fork that goes"}
    assert pruned.kept == {
        "judged by a training run": 1,
        "being run": 3,
        "a run that stays was forked from them": 2,
    }
    assert threads(file) == {
        "judged",
        "origin",
        "leased",
        "talked",
        "worked",
        "fork",
        "fork of the fork",
    }
    again = prune(file, older_than_seconds=DAY, keep_trained=False)
    assert set(again.thread_ids) == {"judged", "leased", "talked", "worked"}
    assert file.journal.overlays("training") == [], "a judgement goes with what it judges"
    assert sound(file)


def test_pruning_keeps_what_is_resumed_meanwhile(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The origin of the resumed run is kept too. The state read before the deletion has changed."""
    run(store, "origin")
    run(store, "resumed", of="origin")
    run(store, "nobody's")
    exclusive = store.database.exclusive
    with ExitStack() as stack:

        def resumed_before(work: Any) -> Any:
            monkeypatch.setattr(store.database, "exclusive", exclusive)
            stack.enter_context(store.lease("resumed"))
            return exclusive(work)

        monkeypatch.setattr(store.database, "exclusive", resumed_before)
        pruned = prune(store, older_than_seconds=DAY)
    assert pruned.thread_ids == ("nobody's",)
    assert pruned.kept == {"being run": 1, "a run that stays was forked from them": 1}
    assert (
        threads(store) == {"origin", "resumed"}
        and messages(store, "resumed") != []
        and sound(store)
    )


def test_older_steps_lose_their_checkpoints_and_keep_what_is_learned_from(store: RunStore) -> None:
    """Active runs, origins of forks and threads that are no training rollouts keep their
    checkpoints.
    """
    steps = [f"run-1/step-{step}/0/{sample}" for step in (0, 1, 2, 10) for sample in (0, 1)]
    made = {thread: run(store, thread) for thread in (*steps, "run-1/eval/0/0")}
    run(store, "fork", of="run-1/step-0/0/0")
    made["run-1/step-1/0/2"] = run(store, "run-1/step-1/0/2", of="run-1/step-0/0/0")
    with store.lease("run-1/step-0/0/1"):
        would = prune_steps(store, 1, dry_run=True)
        assert would.thread_ids == tuple(steps[2:6])
        assert would.kept == {
            "forks": 1,
            "a run was forked from them": 1,
            "being run": 1,
        } and messages(store, steps[2])
        done = prune_steps(store, 9)
    assert done.thread_ids == tuple(steps[2:4]) and done.freed > 0
    for thread, trajectory in made.items():
        assert store.journal.trajectory(thread) == trajectory
        assert bool(messages(store, thread)) is (thread not in done.thread_ids)
    assert sound(store) and prune_steps(store, 9).kept == {
        "forks": 1,
        "a run was forked from them": 1,
    }


def test_what_is_packed_is_what_it_was_and_what_is_damaged_is_said_to_be(tmp_path: Path) -> None:
    record, header = (
        make_call("task").model_dump_json().encode(),
        make_trajectory().model_dump_json().encode(),
    )
    numbers, mask = array("i", range(40)).tobytes(), bytes([0] * 30 + [1] * 10)
    for plain, small, unpack, factor in (
        (record, packed(record, "call"), plain_record, 4),
        (header, packed(header, "trajectory"), plain_record, 2),
        (numbers, packed_numbers(numbers), plain_numbers, 2),
        (mask, packed_mask(mask), plain_mask, 4),
    ):
        assert factor * len(small) < len(plain) and unpack(small) == plain == unpack(plain)
        for damaged in (small[:-1], small + b"x", small[:2] + small[3:]):
            with pytest.raises(ValueError, match=r"unpacked|cut short"):
                unpack(damaged + b"x" * (len(damaged) % 4 == 0))
    assert packed(packed(record, "call"), "call") == packed(record, "call")
    with open_store(tmp_path / "sealed.db", key=bytes(32)) as sealed:
        made = run(sealed, "run-1/step-0/0/0")
        run(sealed, "run-1/step-1/0/0")
        prune_steps(sealed, 1)
        assert sealed.journal.trajectory("run-1/step-0/0/0") == made and sound(sealed)
        leaf = made.calls[-1]
        assert sealed.journal.path_tokens(leaf.id) == path_tokens(path_to(made.calls, leaf.id))


@given(st.binary(max_size=400))
def test_numbers_are_packed_whatever_they_are(data: bytes) -> None:
    plain = data[: len(data) // 4 * 4]
    small = packed_numbers(plain)
    assert plain_numbers(small) == plain and packed_numbers(small) == small
    mask = bytes(byte & 1 for byte in data)
    assert plain_mask(packed_mask(mask)) == mask and packed_mask(packed_mask(mask)) == packed_mask(
        mask
    )


def test_deleting(file: RunStore) -> None:
    for thread in ("origin", "alone", "judged"):
        run(file, thread)
    run(file, "fork", of="origin")
    judge(file, "judged")
    file.journal.write_tool_call(
        make_tool_call(identity=make_tool_call().identity.model_copy(update={"thread_id": "alone"}))
    )
    talk(file, "bare", "hello")
    with pytest.raises(StoreError, match="There is no thread 'absent'"):
        delete_runs(file, ["alone", "absent"])
    with pytest.raises(StoreError, match="Thread 'origin' is the origin of the forks fork"):
        delete_runs(file, ["alone", "origin"])
    with file.lease("bare"), pytest.raises(StoreError, match="Thread 'bare' is being run"):
        delete_runs(file, ["alone", "bare"])
    assert len(threads(file)) == 5, "what is refused takes nothing"
    delete_runs(file, ["id of alone", "bare", "judged"])
    assert threads(file) == {"origin", "fork"} and file.journal.overlays("training") == []
    assert stats(file).rows["tool calls"] == 0 and file.journal.find_trajectory("alone") is None
    delete_runs(file, ["origin", "fork"])
    assert set(stats(file).rows.values()) == {0}


def test_a_trajectory_outlives_its_checkpoints(store: RunStore) -> None:
    made = run(store, "t")
    store.checkpointer.delete_thread("t")
    assert messages(store, "t") == [] and store.journal.trajectory("t") == made
    assert threads(store) == {"t"} and sound(store)
    delete_runs(store, ["t"])
    assert threads(store) == set() and set(stats(store).rows.values()) == {0}


def test_leases_go_with_their_threads(url: str, store: RunStore) -> None:
    for thread in ("bare", "cleared", "kept", "run"):
        for doing in (leases.RUN, leases.CHAT, leases.COMMAND):
            with store.lease(thread, doing):
                run(store, thread) if thread == "run" else talk(store, thread, "hello")

    def left() -> set[str]:
        store.database.flush()
        return {str(row[0]) for row in execute(url, "SELECT thread_id FROM leases")}

    def of(*threads: str) -> set[str]:
        return {
            f"{thread}{doing}" for thread in threads for doing in ("", " talked on", " worked on")
        }

    assert left() == of("bare", "cleared", "kept", "run")
    delete_runs(store, ["bare"])
    with store.lease("cleared"):
        store.checkpointer.delete_thread("cleared")
        assert left() == {"cleared"} | of("kept", "run")
        talk(store, "cleared", "anew")
    store.checkpointer.delete_thread("cleared")
    assert left() == of("kept", "run")
    with store.lease("never begun"), store.lease("held"):
        store.database.write(leases.forget_unused_leases)
        assert left() == {"never begun", "held"} | of("kept", "run")
    with store.lease("held"):
        prune(store, older_than_seconds=DAY)
        assert left() == {"held"} | of("kept")


def test_the_numbers_of_stats(store: RunStore) -> None:
    empty = stats(store)
    assert (
        set(empty.rows.values()) == set(empty.bytes.values()) == {0}
        and empty.threads == 0
        and empty.size > 0
    )
    run(store, "one")
    run(store, "two", status=RunStatus.FAILED)
    talk(store, "bare", "hello")
    found = stats(store)
    assert found.threads == 3 and found.by_status == {"completed": 1, "failed": 1}
    assert (found.rows["trajectories"], found.rows["model calls"], found.rows["tokens"]) == (
        2,
        2,
        2,
    )
    assert (
        found.rows["checkpoints"] == 15 and found.rows["tool calls"] == found.rows["overlays"] == 0
    )
    assert found.bytes["tokens"] == 2 * (4 * 4 + 4 + 4 * 4), (
        "int32, mask and float32 of four tokens"
    )
    assert found.size >= sum(found.bytes.values())


def test_vacuum_gives_back_what_was_freed(store: RunStore) -> None:
    noise = random.Random(0)  # what cannot be packed
    for number in range(6):
        talk(store, f"{number}", *(noise.randbytes(2500).hex() for _ in range(3)))
    full = store.database.size()
    delete_runs(store, [f"{number}" for number in range(1, 6)])
    store.database.vacuum()
    assert store.database.size() < full / 2
    assert len(messages(store, "0")) == 6 and sound(store)


# damage


def flip(data: bytes, at: int = -1) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 0x55
    return bytes(changed)


def flip_blob(url: str, kind: int) -> str:
    hash_, data = execute(url, "SELECT hash, data FROM blobs WHERE kind = ? ORDER BY seq", (kind,))[
        -1
    ]
    execute(url, "UPDATE blobs SET data = ? WHERE hash = ?", (flip(data, 0), hash_))
    return f"value {hash_.hex()}: "


def delete_blob(url: str, kind: int) -> str:
    (hash_,) = execute(url, "SELECT hash FROM blobs WHERE kind = ? ORDER BY seq", (kind,))[0]
    execute(url, "DELETE FROM blobs WHERE hash = ?", (hash_,))
    return f"names .*{hash_.hex()}, which is "


def put_orphan_writes(url: str) -> str:
    thread, id_ = execute(url, "SELECT thread_id, checkpoint_id FROM writes")[0]
    execute(url, "DELETE FROM checkpoints WHERE thread_id = ? AND id = ?", (thread, id_))
    return f"writes of thread {thread}: their checkpoint is lost"


def spoil(table: str, column: str, data: bytes, said: str) -> Callable[[str], str]:
    def damage(url: str) -> str:
        execute(url, f"UPDATE {table} SET {column} = ?", (data,))
        return said

    return damage


def lose(table: str, said: str) -> Callable[[str], str]:
    def damage(url: str) -> str:
        execute(url, f"DELETE FROM {table}")
        return said

    return damage


def orphan_call(url: str) -> str:
    execute(url, "UPDATE calls SET parent = 'nobody'")
    return "model call .*: its parent is lost"


def lose_invariant(url: str) -> str:
    """Write a log-prob above 0, the float32 1.0."""
    execute(url, "UPDATE tokens SET logprobs = ?", (b"\x00\x00\x80\x3f" * 4,))
    return "trajectory id of t: .*logprob-"


CANNOT = "cannot be read"
DAMAGES: dict[str, Callable[[str], str]] = {
    "a byte of a message": lambda url: flip_blob(url, MSGPACK),
    "a byte of a list": lambda url: flip_blob(url, LIST),
    "a message that is gone": lambda url: delete_blob(url, MSGPACK),
    "a list that is gone": lambda url: delete_blob(url, LIST),
    "writes without a checkpoint": put_orphan_writes,
    "a manifest that is no msgpack": spoil(
        "checkpoints", "manifest", b"\xc1", f"checkpoint .*: {CANNOT}"
    ),
    "a manifest that is another thing": spoil(
        "checkpoints", "manifest", ormsgpack.packb({"a": 1, "b": 2}), f"checkpoint .*: {CANNOT}"
    ),
    "a reference that is none": spoil(
        "checkpoints",
        "manifest",
        ormsgpack.packb([{}, [["messages", 1, []]]]),
        f"checkpoint .*: {CANNOT}",
    ),
    "writes that are no msgpack": spoil("writes", "data", b"\xc1", f"writes of task .*: {CANNOT}"),
    "tokens that are gone": lose("tokens", "model call .*: has neither tokens nor a request"),
    "a call that is gone": lose("calls", "tokens of .*: have no model call"),
    "a parent that is gone": orphan_call,
    "a trajectory that is no JSON": spoil(
        "trajectories", "record", b"{", "trajectory id of t: cannot be read"
    ),
    "a call that is no JSON": spoil("calls", "record", b"{}", "trajectory id of t: cannot be read"),
    "a call that breaks an invariant": lose_invariant,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_kind_of_damage_is_found(damage: str, file: RunStore) -> None:
    run(file, "t")
    assert sound(file)
    said = DAMAGES[damage](file.url)
    found = list(verify(file))
    assert any(re.search(said, finding) for finding in found), (said, found)


def test_damage_is_found_on_a_server_too(store: RunStore, url: str) -> None:
    run(store, "t")
    said = [flip_blob(url, MSGPACK), delete_blob(url, LIST)]
    found = " ".join(verify(store))
    assert said[0] in found and re.search(said[1], found)


def test_a_row_of_another_place_is_damage_in_a_sealed_store(tmp_path: Path) -> None:
    with open_store(tmp_path / "sealed.db", key=bytes(32)) as store:
        run(store, "t")
        assert sound(store)
        execute(store.url, "UPDATE tokens SET mask = logprobs")
        execute(store.url, "UPDATE blobs SET data = (SELECT data FROM blobs LIMIT 1)")
        found = " ".join(verify(store))
    assert "was not sealed with the store's key" in found
    assert "trajectory id of t: cannot be read" in found


def test_the_database_finds_what_is_wrong_with_its_own_file(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with open_store(path) as store:
        run(store, "t")
    (page,) = execute(
        f"sqlite:///{path}", "SELECT rootpage FROM sqlite_master WHERE name = 'trajectories_run'"
    )[0]
    data = bytearray(path.read_bytes())
    # an index that says it is empty
    data[(page - 1) * 4096 + 3 : (page - 1) * 4096 + 5] = b"\x00\x00"
    path.write_bytes(data)
    with open_store(path) as store:
        assert any("trajectories_run" in finding for finding in verify(store))


@pytest.mark.parametrize(
    "damage", ["a byte of a list", "a manifest that is no msgpack", "writes that are no msgpack"]
)
def test_nothing_is_collected_beneath_what_is_damaged(damage: str, file: RunStore) -> None:
    """Values named by a damaged list may be all that is left of it. They are removed with its
    thread.
    """
    talk(file, "t", "hello", "again")
    DAMAGES[damage](file.url)
    talk(file, "other", "unharmed")
    before = stats(file).rows["values"]
    with pytest.raises(
        StoreError, match=r"cannot be read .*No values were collected.*store verify"
    ):
        collect_values(file)
    assert stats(file).rows["values"] == before
    delete_runs(file, ["t"])
    assert sound(file) and len(messages(file, "other")) == 2


def test_a_store_of_all_sorts_is_sound(store: RunStore) -> None:
    """Subgraphs, questions, exit durability and errors do not count as damage."""

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(str(interrupt("which?")))]}

    def fail(state: MessagesState) -> dict[str, Any]:
        raise ValueError("a node that fails")

    inner = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()
    asking = StateGraph(MessagesState).add_node("inner", inner).add_edge(START, "inner")
    failing = StateGraph(MessagesState).add_node("fail", fail).add_node("answer", answer)
    failing = (
        failing.add_edge(START, "fail")
        .add_edge(START, "answer")
        .compile(checkpointer=store.checkpointer)
    )
    graph = asking.compile(checkpointer=store.checkpointer)
    given: Any = {"messages": [HumanMessage("hello " * 30)]}
    for durability in ("sync", "async", "exit"):
        graph.invoke(given, on(f"asked {durability}"), durability=durability)
        with pytest.raises(ValueError, match="a node that fails"):
            failing.invoke(given, on(f"failed {durability}"), durability=durability)
    assert list(verify(store)) == []
    assert collect_values(store) >= 0
    assert list(verify(store)) == []
