"""One run at a time on a thread: leases of live and of dead processes, and graphs that were given
the bare saver.
"""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import StateUpdate

from hrm_agent.errors import LeaseLostError, RunError, StoreError
from hrm_agent.store import RunStore, open_store
from hrm_agent.store.checkpoints.saver import StoreSaver
from hrm_agent.store.database import leases
from hrm_agent.store.upkeep.maintenance import verify
from hrm_agent.testing import block_until
from tests.support.store.bodies import execute, is_file, pass_time


class Clock:
    """Clocks of this process: the wall clock, which may be set, and the monotonic one, which may be
    advanced.
    """

    def __init__(self) -> None:
        self.ahead = self.passed = 0.0

    def time(self) -> float:
        return time.time() + self.ahead + self.passed

    def monotonic(self) -> float:
        return time.monotonic() + self.passed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(leases, "time", clock)
    return clock


def held(store: RunStore) -> list[str]:
    with store.database.read() as cursor:
        found = cursor.execute("SELECT thread_id FROM leases WHERE expires_at > 0").fetchall()
        return [str(row[0]) for row in found]


# leases


def test_a_lease_is_held_once_and_given_back(url: str, store: RunStore) -> None:
    with open_store(url) as other:  # another owner, though of this process
        with store.lease("t"), store.lease("u"):
            for refused in (store, other):
                with (
                    pytest.raises(RunError, match=r"Thread 't' is being run already, by .*process"),
                    refused.lease("t"),
                ):
                    pytest.fail("two runs on one thread")
            with other.lease("v"):
                assert sorted(held(other)) == ["t", "u", "v"]
        other.database.flush()
        assert held(store) == []
        with other.lease("t"):
            assert held(other) == ["t"]


def test_an_error_gives_a_lease_back(url: str, store: RunStore) -> None:
    with pytest.raises(ZeroDivisionError), store.lease("t"):
        raise ZeroDivisionError
    assert held(store) == []
    with open_store(url) as other, other.lease("t"), pytest.raises(RunError), store.lease("t"):
        pytest.fail("two runs on one thread")
    with store.lease("t"):
        assert held(store) == ["t"]


def test_leases_of_a_process_that_is_known_to_be_dead_are_free_at_once_and_lost_if_it_lives(
    url: str, store: RunStore
) -> None:
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    with open_store(url) as other:
        with other.lease("t") as lost:
            store.leases.take_from(other.owner)
            with store.lease("t"):
                with pytest.raises(LeaseLostError):
                    other.checkpointer.put(
                        config,
                        empty_checkpoint(),
                        {"source": "input", "step": -1, "parents": {}},
                        {},
                    )
                other.leases.renew()
                assert isinstance(lost.error, LeaseLostError)
                assert held(store) == ["t"]
        other.database.flush()
        store.database.flush()
        assert held(store) == []
        with other.lease("t"):
            assert held(store) == ["t"]


def test_a_lease_that_is_taken_again_at_once_stays(
    url: str, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release of the previous lease is written late. Another thread of the process may hold the
    lease again by then.
    """
    put_off, defer = list[Any](), store.database.defer
    monkeypatch.setattr(store.database, "defer", lambda work, thread_id=None: put_off.append(work))
    with store.lease("t"):
        pass
    monkeypatch.setattr(store.database, "defer", defer)
    with store.lease("t"):
        (give_back,) = put_off
        store.database.write(give_back)
        assert held(store) == ["t"]


def test_a_lease_is_given_back_before_it_may_be_taken_again(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease may be taken again after a failed release too."""
    defer, refused = store.database.defer, list[bool]()

    def take(work: Any, thread_id: str | None = None) -> None:
        monkeypatch.setattr(store.database, "defer", defer)
        with pytest.raises(RunError, match="by this process"), store.lease("t"):
            pytest.fail("it was not given back yet")
        refused.append(True)
        raise StoreError("no")

    monkeypatch.setattr(store.database, "defer", take)
    with pytest.raises(StoreError, match="no"), store.lease("t"):
        pass
    assert refused == [True]
    with store.lease("t"):
        assert held(store) == ["t"]


def test_leases_of_threads_that_are_run_next_are_taken_together(url: str, store: RunStore) -> None:
    config: Any = {"configurable": {"thread_id": "known", "checkpoint_ns": ""}}
    store.checkpointer.put(
        config, empty_checkpoint(), {"source": "input", "step": -1, "parents": {}}, {}
    )
    names = ["a", "b", "known", "c", "d"]
    with open_store(url) as other, other.lease("d"), store.leases.ahead(names):
        with store.lease("a") as lease:
            assert lease.new
            assert sorted(held(store)) == [
                "a",
                "b",
                "c",
                "d",
            ], "of a thread with a record, none ahead"
            with pytest.raises(RunError, match="'b' is being run already"), other.lease("b"):
                pytest.fail("two runs on one thread")
        store.database.flush()
        before = store.database.transaction
        with store.lease("b") as second, store.lease("c") as third:
            assert second.new and third.new
            assert store.database.transaction == before, "both were taken with the first"
        with store.lease("known") as fourth:
            assert not fourth.new
        with pytest.raises(RunError, match="'d' is being run already"), store.lease("d"):
            pytest.fail("two runs on one thread")
        store.database.flush()
        assert held(store) == ["d"]
        with store.lease("b") as again:
            assert sorted(held(store)) == ["b", "d"], "one that was given back is taken by itself"
            assert again.new is False


def test_what_is_taken_ahead_and_not_used_is_given_back(url: str, store: RunStore) -> None:
    with open_store(url) as other:
        with store.leases.ahead(["a", "b", "c"]), store.lease("a"):
            assert sorted(held(store)) == ["a", "b", "c"]
        with store.lease("b"):
            store.database.flush()
            assert held(store) == ["b"], "what gives back the first one of b does not take this one"
        store.database.flush()
        assert held(store) == []
        with other.lease("c"):
            assert held(other) == ["c"]


def test_a_lease_that_was_taken_ahead_and_lost_writes_nothing(
    url: str, store: RunStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 3600.0)
    config: Any = {"configurable": {"thread_id": "b", "checkpoint_ns": ""}}
    with open_store(url) as other, store.leases.ahead(["a", "b"]):
        with store.lease("a"):
            clock.passed += 31
            if not is_file(url):  # whose clock is the server's
                pass_time(url, 31)
        with (
            other.lease("b"),
            pytest.raises(RunError, match="'b' is being run already"),
            store.lease("b"),
        ):
            pytest.fail("two runs on one thread")
    with open_store(url) as other, store.leases.ahead(["c", "d", "e"]), store.lease("c"):
        execute(url, "UPDATE leases SET expires_at = 0 WHERE thread_id IN ('d', 'e')")
        config["configurable"]["thread_id"] = "d"
        with other.lease("d"), store.lease("d"), pytest.raises(LeaseLostError):
            store.checkpointer.put(
                config, empty_checkpoint(), {"source": "input", "step": -1, "parents": {}}, {}
            )
        with other.lease("e"):
            pass
        other.database.flush()
        store.leases.renew()
        with store.lease("e") as lease:
            assert not lease.new, "the heart has seen that it was another's"
    assert execute(url, "SELECT count(*) FROM checkpoints") == [(0,)]


def test_a_lease_is_given_back_when_the_store_is_closed(url: str) -> None:
    with open_store(url) as store:
        holding = store.lease("t")
        with holding:
            assert held(store) == ["t"]
    assert execute(url, "SELECT thread_id, expires_at FROM leases") == [("t", 0.0)]


def test_the_heart_keeps_a_lease_alive(
    url: str, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each beat extends the lease by another 30 seconds."""
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.01)
    with open_store(url) as other, store.lease("t"):
        for _ in range(3):
            pass_time(url, 29)
            block_until(
                lambda: execute(url, "SELECT expires_at FROM leases")[0][0] > time.time() + 25
            )
            pass_time(url, 1)
            with pytest.raises(RunError), other.lease("t"):
                pytest.fail("a lease that is kept alive ran out")


def test_a_lease_that_ran_out_is_taken_over(
    url: str, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The previous owner, absent for so long, neither takes the lease back nor releases the
    other's.
    """
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 3600.0)
    with open_store(url) as other:
        with store.lease("t"):
            pass_time(url, 25)
            with pytest.raises(RunError), other.lease("t"):
                pytest.fail("it has not run out")
            pass_time(url, 6)
            with other.lease("t"):
                now = execute(url, "SELECT owner, epoch, expires_at FROM leases")
                assert now[0][1] == 2, "it has changed hands"
        store.database.flush()
        other.database.flush()
        assert execute(url, "SELECT owner, epoch FROM leases") == [now[0][:2]]


def lease_of(url: str, process: str, expires_at: float) -> None:
    execute(url, "DELETE FROM leases")
    values = ("t", "somebody", process, expires_at)
    execute(
        url,
        "INSERT INTO leases (thread_id, owner, process, expires_at) VALUES (?, ?, ?, ?)",
        values,
    )


def test_another_machine_is_waited_for(url: str, store: RunStore) -> None:
    """A process of another machine cannot be checked, whichever process has its number here."""
    lease_of(url, "elsewhere/1/1", time.time() + 30)
    with pytest.raises(RunError, match="by process 1 on elsewhere"), store.lease("t"):
        pytest.fail("two runs on one thread")
    lease_of(url, "elsewhere/1/1", time.time() - 1)
    with store.lease("t"):
        assert held(store) == ["t"]


def test_the_number_of_a_dead_process_given_to_another_is_not_that_process(
    url: str, store: RunStore
) -> None:
    _, boot, namespace = leases._this_process().rsplit("/", 2)
    lease_of(url, f"elsewhere/1/12345/{boot}/{namespace}", time.time() + 3600)
    with store.lease("t"):
        assert held(store) == ["t"]


@pytest.mark.parametrize(
    "other", ["/{boot}/1", "/another/{namespace}", "//", ""], ids=["pid", "boot", "none", "old"]
)
def test_a_process_that_cannot_be_seen_is_not_taken_for_dead(
    other: str, url: str, store: RunStore
) -> None:
    """The process is of another PID namespace, whatever its host's name, or was noted without boot
    and namespace. On a server, a process of another boot is on another machine. In a file, it ran
    before this machine was restarted, and its lease is taken over.
    """
    _, boot, namespace = leases._this_process().rsplit("/", 2)
    process = f"{socket.gethostname()}/1/12345" + other.format(boot=boot, namespace=namespace)
    lease_of(url, process, time.time() + 3600)
    if is_file(url) and other.startswith("/another"):
        with store.lease("t"):
            assert held(store) == ["t"]
        return
    with pytest.raises(RunError, match="is being run already, by process 1 on"), store.lease("t"):
        pytest.fail("a live owner was taken for dead")
    lease_of(url, process, time.time() - 1)
    with store.lease("t"):
        assert held(store) == ["t"]


# clocks


@pytest.mark.parametrize("ahead", [-86_400.0, -3600.0, 3600.0, 86_400.0])
@pytest.mark.parametrize("whose", ["owner", "other"])
def test_a_wall_clock_that_is_wrong_takes_no_live_lease_and_keeps_no_dead_one(
    whose: str,
    ahead: float,
    url: str,
    store: RunStore,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The wrong clock may be the owner's or the other process's, and may be set between two
    heartbeats of the owner.
    """
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 3600.0)
    clock.ahead = ahead if whose == "owner" else 0.0
    with open_store(url) as other, store.lease("t"):
        clock.ahead = ahead - clock.ahead
        for _ in range(2):
            with pytest.raises(RunError, match="is being run already"), other.lease("t"):
                pytest.fail("a live lease was taken")
            with other.database.read() as cursor:
                assert leases.leased(other.database, cursor) == {"t"}
            clock.ahead = 0.0
            store.leases.renew()
        clock.ahead = ahead
        store.leases.renew()
        clock.ahead = 0.0
        pass_time(url, 31)
        with other.database.read() as cursor:
            assert leases.leased(other.database, cursor) == set()
        with other.lease("t"):
            assert held(other) == ["t"]


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
def test_a_dead_owner_whose_clock_was_wrong_is_not_waited_for_longer_than_a_lease(
    ahead: float, url: str, store: RunStore
) -> None:
    """Lease as an earlier version wrote it. Its process cannot be checked, so the first request
    starts the time.
    """
    lease_of(url, "elsewhere/1/1", time.time() + 30 + ahead)
    if ahead > 0:
        with pytest.raises(RunError, match="is being run already"), store.lease("t"):
            pytest.fail("it may be alive")
        assert time.time() < execute(url, "SELECT expires_at FROM leases")[0][0] <= time.time() + 31
        pass_time(url, 31)
    with store.lease("t"):
        assert held(store) == ["t"]


def test_many_that_want_one_lease(url: str, store: RunStore) -> None:
    """Racing threads and stores: at most one of them holds the lease at any time."""
    holding, most, done = 0, 0, 0
    lock = threading.Lock()

    def race(opened: RunStore) -> None:
        nonlocal holding, most, done
        for _ in range(10):
            try:
                with opened.lease("t"):
                    with lock:
                        holding += 1
                        most, done = max(most, holding), done + 1
                    time.sleep(0.001)
                    with lock:
                        holding -= 1
            except RunError:
                time.sleep(0.001)

    with open_store(url) as other, ThreadPoolExecutor(4) as pool:
        list(pool.map(race, (store, other, store, other)))
    assert most == 1 and done > 0


# the bare saver


class Gate:
    """A node that waits in its step until it may go on."""

    def __init__(self) -> None:
        self.entered, self.open = threading.Semaphore(0), threading.Event()

    def __call__(self, state: MessagesState) -> dict[str, Any]:
        if state["messages"][-1].content == "wait":
            self.entered.release()
            assert self.open.wait(60)
        return {"messages": [AIMessage(f"after {state['messages'][-1].content}")]}


def on(thread: str, **named: Any) -> Any:
    return {"configurable": {"thread_id": thread, **named}}


def say(*words: str) -> Any:
    return {"messages": [HumanMessage(word) for word in words]}


def compiled(store: RunStore, node: Any) -> Any:
    graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node")
    return graph.compile(checkpointer=store.checkpointer)


def said(graph: Any, thread: str = "t") -> list[str]:
    return [message.content for message in graph.get_state(on(thread)).values["messages"]]


def at_its_node(store: RunStore) -> bool:
    """The newest checkpoint is the one that the node's step starts from."""
    newest = [found.metadata.get("source") for found in store.checkpointer.list(on("t"), limit=2)]
    return newest == ["loop", "input"]


@pytest.mark.parametrize(("durability", "begun"), [("sync", False), ("async", True)])
def test_a_second_run_on_a_thread_is_refused(
    durability: str, begun: bool, url: str, store: RunStore
) -> None:
    """The second run, on its own store, begins during a step of the first, and is in its own step
    when the first ends.
    """
    gate, late = Gate(), Gate()
    with open_store(url) as other, ThreadPoolExecutor(2) as pool:
        graph, second = compiled(store, gate), compiled(other, late)
        before = []
        if begun:
            graph.invoke(say("hello"), on("t"))
            before = ["hello", "after hello"]
        runs = [pool.submit(graph.invoke, say("wait"), on("t"), durability=durability)]
        assert gate.entered.acquire(timeout=60)
        block_until(lambda: at_its_node(store))  # checkpoints may be written beside the step
        # a run that has read the thread before the first wrote to it: its input comes from where
        # the first's came from
        first_input = next(
            found
            for found in store.checkpointer.list(on("t"))
            if found.metadata.get("source") == "input"
        )
        stale = on("t", checkpoint_ns="")
        if first_input.parent_config is not None:
            stale = first_input.parent_config
        else:
            other.checkpointer.heads.empty["t"] = None
        new = {**first_input.checkpoint, "id": f"f{first_input.checkpoint['id'][1:]}"}
        with pytest.raises(
            RunError, match=r"Thread 't' was continued by another run: .*was not written"
        ):
            other.checkpointer.put(stale, new, {"source": "input", "step": 9, "parents": {}}, {})
        runs.append(pool.submit(second.invoke, None, on("t"), durability=durability))
        assert late.entered.acquire(timeout=60)
        gate.open.set()
        first = runs[0].result(60)
        late.open.set()
        with pytest.raises(RunError, match="Run one at a time on a thread"):
            runs[1].result(60)
        expected = [*before, "wait", "after wait"]
        assert [m.content for m in first["messages"]] == expected
        assert said(graph) == said(second) == expected
        graph.invoke(say("on"), on("t"))
        assert said(graph) == [*expected, "on", "after on"]
    assert list(verify(store)) == []


@pytest.mark.parametrize(("durability", "begun"), [("sync", False), ("async", True)])
async def test_so_is_a_second_asynchronous_run(
    durability: Any, begun: bool, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs begin at the same moment, like two requests of one user. Each has read the thread before
    either goes on.
    """
    both, readers, read = asyncio.Event(), set[Any](), StoreSaver.aget_tuple

    async def noted(saver: StoreSaver, config: Any) -> Any:
        found = await read(saver, config)
        readers.add(asyncio.current_task())
        if len(readers) == 2:
            both.set()
        await both.wait()
        return found

    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"after {state['messages'][-1].content}")]}

    graph = compiled(store, node)
    if begun:
        await graph.ainvoke(say("hello"), on("t"))
    monkeypatch.setattr(StoreSaver, "aget_tuple", noted)
    runs = [graph.ainvoke(say(word), on("t"), durability=durability) for word in ("one", "two")]
    outcomes = await asyncio.gather(*runs, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    (ended,) = [outcome for outcome in outcomes if isinstance(outcome, dict)]
    assert len(refused) == 1 and isinstance(refused[0], RunError)
    state = await graph.aget_state(on("t"))
    assert [m.content for m in state.values["messages"]] == [m.content for m in ended["messages"]]
    assert len(ended["messages"]) == (4 if begun else 2)
    assert list(verify(store)) == []


def test_time_travel_is_no_second_run(store: RunStore) -> None:
    graph = compiled(store, Gate())
    for word in ("one", "two", "three"):
        graph.invoke(say(word), on("t"))
    moments = list(graph.get_state_history(on("t")))
    early = next(m for m in moments if m.next == ("node",) and len(m.values["messages"]) == 1)
    again = graph.invoke(None, early.config)
    assert [m.content for m in again["messages"]] == ["one", "after one"]
    edited = graph.update_state(early.config, say("edited"))
    assert [m.content for m in graph.invoke(None, edited)["messages"]] == [
        "one",
        "edited",
        "after edited",
    ]
    bulk = graph.bulk_update_state(
        early.config,
        [[StateUpdate(say("first"), as_node="node")], [StateUpdate(say("second"), as_node="node")]],
    )
    assert [m.content for m in graph.get_state(bulk).values["messages"]] == [
        "one",
        "first",
        "second",
    ]
    assert [m.content for m in graph.invoke(say("more"), bulk)["messages"]][-2:] == [
        "more",
        "after more",
    ]
    assert [m.content for m in graph.invoke(say("last"), on("t"))["messages"]][-4:] == [
        "more",
        "after more",
        "last",
        "after last",
    ]
    assert list(verify(store)) == []


async def test_asynchronous_time_travel_is_none_either(url: str, store: RunStore) -> None:
    """Time travel is by another process's saver, which has not seen the thread."""
    graph = compiled(store, Gate())
    for word in ("one", "two"):
        await graph.ainvoke(say(word), on("t"))
    early = [m async for m in graph.aget_state_history(on("t"))][-2]
    with open_store(url) as other:
        second = compiled(other, Gate())
        await second.ainvoke(None, early.config)
        edited = await second.aupdate_state(early.config, say("edited"))
        ended = await second.ainvoke(None, edited)
    assert [m.content for m in ended["messages"]] == ["one", "edited", "after edited"]
    assert said(graph) == ["one", "edited", "after edited"]


def test_of_two_that_write_at_the_same_moment_one_is_refused(url: str, store: RunStore) -> None:
    """Writers have read the thread in the same state. New and existing threads are treated alike."""
    graph = compiled(store, Gate())
    with open_store(url) as other, ThreadPoolExecutor(2) as pool:
        for thread in map(str, range(10)):
            if int(thread) % 2:
                graph.invoke(say("begun"), on(thread))
            begins = threading.Barrier(2)

            def write(
                saver: StoreSaver, thread: str = thread, begins: threading.Barrier = begins
            ) -> str:
                newest = saver.get_tuple(on(thread))
                parent = on(
                    thread,
                    checkpoint_ns="",
                    checkpoint_id=newest.checkpoint["id"] if newest else None,
                )
                saver.heads.chosen.clear()
                begins.wait(60)
                try:
                    saver.put(
                        parent,
                        empty_checkpoint(),
                        {"source": "input", "step": 9, "parents": {}},
                        {},
                    )
                except RunError as error:
                    return str(error)
                return "written"

            words = sorted(pool.map(write, [store.checkpointer, other.checkpointer]))
            assert words[1] == "written" and "was continued by another run" in words[0]


def test_runs_after_each_other_from_many_places(url: str, store: RunStore) -> None:
    """Each store sees the others' additions, which do not count as a second run."""
    with open_store(url) as second, open_store(url) as third:
        graphs = [compiled(opened, Gate()) for opened in (store, second, third)]
        for number in range(9):
            graphs[number % 3].invoke(say(str(number)), on("t"))
        assert said(graphs[0])[::2] == [str(number) for number in range(9)]


def test_a_commit_that_failed_was_no_run(tmp_path: Path) -> None:
    """Writes of the failed commit do not count as part of the thread."""

    def deny(action: int, argument: str | None, *_: Any) -> int:
        # 22: a transaction
        return sqlite3.SQLITE_DENY if (action, argument) == (22, "COMMIT") else sqlite3.SQLITE_OK

    with open_store(tmp_path / "store.db") as store:
        graph = compiled(store, Gate())
        graph.invoke(say("one"), on("t"))
        database: Any = store.database
        database.flush()
        # SQLite waits for the flushing thread here, and that thread for Python's lock
        with database._writing:
            database._writer.set_authorizer(deny)
        with pytest.raises(StoreError, match="not authorized"):
            graph.invoke(say("two"), on("t"))
        with database._writing:
            database._writer.set_authorizer(None)
        graph.invoke(say("three"), on("t"))
        assert said(graph)[-2:] == ["three", "after three"] and list(verify(store)) == []


def test_a_thread_is_begun_again_after_it_was_deleted(store: RunStore) -> None:
    graph = compiled(store, Gate())
    for _ in range(3):
        graph.invoke(say("hello"), on("t"))
        assert said(graph) == ["hello", "after hello"]
        store.checkpointer.delete_thread("t")
