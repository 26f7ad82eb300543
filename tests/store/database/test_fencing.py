"""Writes refused to a process whose lease was taken over, and records that no process may write
again.
"""

from __future__ import annotations

import asyncio
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint

from hrm_agent.errors import HrmError, LeaseLostError, StoreError
from hrm_agent.store import Lease, RunStore, open_store
from hrm_agent.store.database import leases
from hrm_agent.store.database.committer import DeferredWork
from hrm_agent.store.database.cursors import answered
from hrm_agent.store.upkeep.maintenance import delete_runs, verify
from hrm_agent.testing import block_until
from hrm_agent.trajectory import RunStatus, ToolStatus
from tests.support.postgres import PostgresServer
from tests.support.store.bodies import execute
from tests.support.store.writer import call, graph_over, trajectory, write_thread
from tests.support.trajectory.samples import make_tool_call

CONFIG: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


@pytest.fixture
def other(url: str, store: RunStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunStore]:
    """Store as a second process sees it. Neither process renews its leases."""
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 3600.0)
    with open_store(url) as opened:
        yield opened


def run_out(url: str) -> None:
    execute(url, "UPDATE leases SET expires_at = 1")


def a_tool_call(content: str = "", status: ToolStatus | None = None) -> Any:
    made = make_tool_call("task", content=content, status=status)
    return made.model_copy(update={"identity": made.identity.model_copy(update={"thread_id": "t"})})


def write_checkpoint(store: RunStore) -> None:
    store.checkpointer.put(
        CONFIG, empty_checkpoint(), {"source": "loop", "step": 1, "parents": {}}, {}
    )


def write_checkpoint_of(store: RunStore) -> Any:
    """Write a checkpoint after the newest one, and return its config."""
    newest = store.checkpointer.get_tuple(CONFIG)
    config = CONFIG if newest is None else newest.config
    return store.checkpointer.put(
        config, empty_checkpoint(), {"source": "loop", "step": 1, "parents": {}}, {}
    )


def write_task(store: RunStore) -> None:
    """Write a task's error, which is committed at once."""
    config: Any = {"configurable": {**CONFIG["configurable"], "checkpoint_id": "c"}}
    store.checkpointer.put_writes(config, [("__error__", "e")], "task")


WRITES: dict[str, Callable[[RunStore], object]] = {
    "checkpoint": write_checkpoint,
    "writes": write_task,
    "model call": lambda store: store.journal.write_call(call("t", 0)),
    "tool call": lambda store: store.journal.write_tool_call(a_tool_call()),
    "trajectory": lambda store: store.journal.write_trajectory(trajectory("t", RunStatus.RUNNING)),
    "options": lambda store: store.options.write("t", "a = 1"),
}
TABLES = (
    "checkpoints",
    "writes",
    "calls",
    "tokens",
    "tool_calls",
    "trajectories",
    "options",
    "blobs",
)


@pytest.mark.parametrize("kind", WRITES)
def test_nothing_is_written_under_a_lease_that_another_has(
    kind: str, url: str, store: RunStore, other: RunStore
) -> None:
    with store.lease("t") as lease:
        WRITES["options"](store)
        execute(url, "DELETE FROM options")
        run_out(url)
        said = r"'t' was taken over by another .* has it now\. .*not recorded"
        with other.lease("t"), pytest.raises(LeaseLostError, match=said):
            WRITES[kind](store)
        other.database.flush()
        # given back, and lost all the same
        with pytest.raises(LeaseLostError, match="not recorded"):
            WRITES[kind](store)
        assert isinstance(lease.error, LeaseLostError)
    with pytest.raises(LeaseLostError):  # what its threads still do when the run has ended
        WRITES[kind](store)
    assert [execute(url, f"SELECT count(*) FROM {table}") for table in TABLES] == [[(0,)]] * len(
        TABLES
    )
    with store.lease("t"):
        WRITES[kind](store)
    assert list(verify(store)) == []


def test_who_had_it_since_is_told(url: str, store: RunStore, other: RunStore) -> None:
    with store.lease("t"):
        run_out(url)
        with other.lease("t"):
            pass
        other.database.flush()
        with pytest.raises(LeaseLostError, match=r"Process \d+ on .* has finished with it since"):
            write_checkpoint(store)
    with store.lease("u"):
        other.journal.write_trajectory(trajectory("u", RunStatus.RUNNING))
        run_out(url)
        delete_runs(other, ["u"])
        with pytest.raises(LeaseLostError, match="Thread 'u' was deleted while"):
            store.journal.write_call(call("u", 0))


def test_a_row_that_was_deleted_gives_nobody_back_what_was_lost(
    url: str, store: RunStore, other: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread is begun again, by another process and by the previous owner. The old work is
    refused in both cases.
    """
    with store.lease("t"):
        old = store.database.fence.work_on("t", lambda _: None)
        execute(url, "DELETE FROM leases")
        with other.lease("t"):
            pass
        other.database.flush()
    for deleted in (False, True):
        if deleted:
            store.database.flush()
            execute(url, "DELETE FROM leases")
        with store.lease("t") as lease, monkeypatch.context() as late:
            write_checkpoint(store)
            late.setattr(store.database.fence, "work_on", lambda *_: old)
            with pytest.raises(LeaseLostError):
                WRITES["options"](store)
            assert lease.error is None


def test_a_lease_that_nobody_took_is_good_however_late(url: str, store: RunStore) -> None:
    with store.lease("t"):
        run_out(url)
        write_checkpoint(store)
    assert execute(url, "SELECT count(*) FROM checkpoints") == [(1,)]


def test_each_lease_on_a_thread_counts(url: str, store: RunStore, other: RunStore) -> None:
    """A command that lost its thread writes nothing, even under the lease of its run."""
    with store.lease("t", leases.COMMAND), store.lease("t"):
        execute(url, "UPDATE leases SET expires_at = 1 WHERE thread_id <> 't'")
        with other.lease("t", leases.COMMAND), pytest.raises(LeaseLostError):
            write_checkpoint(store)


def test_one_that_lost_a_thread_twice_takes_it_again_once(
    url: str, store: RunStore, other: RunStore
) -> None:
    """The process lost both of its leases. A lease without a holder refuses nothing, and one with
    another holder stays lost.
    """
    with store.lease("t", leases.CHAT):
        with store.lease("t", leases.COMMAND), store.lease("t"):
            execute(
                url, "UPDATE leases SET expires_at = 1 WHERE thread_id <> ?", (f"t {leases.CHAT}",)
            )
            with other.lease("t", leases.COMMAND), other.lease("t"):
                store.leases.renew()
            other.database.flush()
            with pytest.raises(LeaseLostError):
                write_checkpoint(store)
        with store.lease("t", leases.COMMAND):
            WRITES["options"](store)
        run_out(url)
        with other.lease("t", leases.CHAT), pytest.raises(LeaseLostError):
            write_checkpoint(store)
        with store.lease("t"), pytest.raises(LeaseLostError):
            write_checkpoint(store)


def test_a_thread_that_was_lost_does_not_stop_another(
    url: str, store: RunStore, other: RunStore
) -> None:
    """Deferred work of a lost thread is dropped from the commit that would have included it."""
    with store.lease("t") as lost, store.lease("u") as kept:
        execute(url, "UPDATE leases SET expires_at = 1 WHERE thread_id = 't'")
        with other.lease("t"):
            config: Any = {"configurable": {**CONFIG["configurable"], "checkpoint_id": "c"}}
            store.checkpointer.put_writes(config, [("messages", "put off")], "task")
            store.journal.write_call(call("u", 0))
        assert lost.error is not None and kept.error is None
    assert execute(url, "SELECT count(*) FROM writes") == [(0,)]
    assert execute(url, "SELECT thread_id FROM calls") == [("u",)]


def test_what_old_work_lost_is_not_lost_by_who_has_taken_it_again(
    url: str, store: RunStore, other: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Late work of a run that lost its thread fails after this process has taken the thread again."""
    with store.lease("t"):
        old = store.database.fence.work_on("t", lambda _: None)
        run_out(url)
        with other.lease("t"):
            pass
        other.database.flush()
    with store.lease("t") as lease:
        with monkeypatch.context() as late:
            late.setattr(store.database.fence, "work_on", lambda *_: old)
            with pytest.raises(LeaseLostError):
                WRITES["options"](store)
        assert lease.error is None
        write_checkpoint(store)


async def held_until_lost(lease: Lease, began: asyncio.Event) -> str:
    try:
        async with lease.stops_when_lost():
            began.set()
            await asyncio.Event().wait()
    except LeaseLostError as error:
        return str(error)
    return ""


async def test_the_heart_notices_and_stops_the_run(
    url: str, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat notices without a write. The task is not left cancelled beyond its block."""
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.01)
    with ExitStack() as stack:
        lease, began = stack.enter_context(store.lease("t")), asyncio.Event()
        task = asyncio.create_task(held_until_lost(lease, began))
        await began.wait()
        execute(
            url, "UPDATE leases SET owner = 'another', process = 'elsewhere/7/1', epoch = epoch + 1"
        )
        assert "Process 7 on elsewhere has it now" in await asyncio.wait_for(task, 60)
        assert task.cancelling() == 0


def test_the_heart_outlives_work_that_fails_in_its_commit(
    url: str, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.01)
    met = 0

    def fail(_: Any) -> None:
        nonlocal met
        met += 1
        raise ValueError("a damaged row")

    with store.lease("t"):
        store.database._later.append(DeferredWork(fail))
        block_until(lambda: met > 0)
        run_out(url)
        block_until(
            lambda: execute(url, "SELECT expires_at > 1 FROM leases") in ([(1,)], [(True,)])
        )


def test_work_that_fails_while_nobody_waits_holds_nothing_back(
    store: RunStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Work deferred beside it, and after it, is committed on time."""
    database, beside, after = store.database, threading.Event(), threading.Event()

    def fail(_: Any) -> None:
        raise ValueError("a damaged row")

    database._later.append(DeferredWork(fail))
    database.defer(lambda _: beside.set())
    assert beside.wait(60)
    block_until(lambda: not database._later)
    assert "gave up a write: a damaged row" in caplog.text
    database.defer(lambda _: after.set())
    assert after.wait(60)
    database.write(lambda _: None)


def test_a_run_whose_event_loop_was_just_closed_needs_no_stop() -> None:
    lease, loop = Lease(), asyncio.new_event_loop()
    block = lease.stops_when_lost()
    loop.run_until_complete(block.__aenter__())
    loop.close()
    lease.lose(LeaseLostError("lost"))
    assert lease.error is not None


async def test_a_cancelled_run_is_cancelled(store: RunStore) -> None:
    with store.lease("t") as lease:
        began = asyncio.Event()
        task = asyncio.create_task(held_until_lost(lease, began))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert lease.error is None


def test_one_that_stops_in_the_middle_of_a_write_is_not_waited_for(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stopped transaction holds the lease's row. The server ends the transaction and rolls it
    back.
    """
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.5)
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 3600.0)
    url = postgres.create_database()
    within, go_on = threading.Event(), threading.Event()

    def work(cursor: Any) -> None:
        cursor.execute("INSERT INTO meta (key, value) VALUES ('half', '')")
        cursor.execute("SELECT 1").fetchone()
        within.set()
        assert go_on.wait(60)
        cursor.execute("SELECT 1").fetchone()

    with open_store(url) as store, open_store(url) as other, store.lease("t"):
        future = store.database.submit(work, "t")
        assert within.wait(60)
        block_until(lambda: taken(other))
        go_on.set()
        with pytest.raises(LeaseLostError):
            future.result(60)
    assert execute(url, "SELECT * FROM meta WHERE key = 'half'") == []
    postgres.drop_database(url)


def taken(store: RunStore) -> bool:
    try:
        with store.lease("t"):
            return True
    except HrmError:  # it has not run out
        return False


# what has ended


def test_a_finished_tool_call_stands(store: RunStore, other: RunStore) -> None:
    begun, ended = a_tool_call(), a_tool_call("first", ToolStatus.OK)
    assert store.journal.write_tool_call(begun) == begun
    assert store.journal.write_tool_call(begun) == begun, "one that is under way is run again"
    assert other.journal.write_tool_call(ended) == ended
    for late in (begun, a_tool_call("late", ToolStatus.ERROR)):
        assert store.journal.write_tool_call(late) == ended
    assert other.journal.find_tool_call(begun.id) == ended
    assert store.journal.write_tool_call(begun, again=True) == begun, (
        "what cannot be given back is run again"
    )
    assert other.journal.find_tool_call(begun.id) == begun


def test_a_finished_trajectory_stands(store: RunStore) -> None:
    ended = trajectory("t", RunStatus.COMPLETED)
    store.journal.write_trajectory(trajectory("t", RunStatus.RUNNING))
    store.journal.write_trajectory(ended)
    late = ended.model_copy(update={"answer": "late", "status": RunStatus.TRUNCATED})
    store.journal.write_trajectory(late)
    assert store.journal.trajectory("t") == ended and [info.status for info in store.threads()] == [
        "completed"
    ]
    store.journal.write_trajectory(trajectory("t", RunStatus.RUNNING))  # taken up again
    store.journal.write_trajectory(late)
    assert store.journal.trajectory("t").answer == "late"


# what a server's log says of it


class Notices:
    """Notifications of the server to a store: read by one of its transactions, or waiting for the
    next.
    """

    def __init__(self, store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self._database: Any = store.database
        self._ask_next = self._database._ask_next
        self._read = 0
        monkeypatch.setattr(self._database, "_ask_next", self._note)

    def _note(self) -> None:
        self._read += 1
        self._ask_next()

    def wait_after(self, change: Callable[[], object]) -> None:
        """Wait for the notification of a change, which a transaction in the background may read
        first.
        """
        before = self._read
        change()
        writer = self._database._writer
        block_until(lambda: self._read > before or select.select([writer.fileno()], [], [], 0)[0])


def test_two_that_share_threads_leave_no_error_in_the_server_s_log(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The stores take turns, repeat work that the other had begun, collect during the other's work,
    and lose their leases.
    """
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 3600.0)
    url = postgres.create_database()
    with open_store(url) as one, open_store(url) as two:
        notices = Notices(one, monkeypatch)
        write_thread(one, "u")
        before = len(postgres.log)
        for number in range(4):
            store = (one, two)[number % 2]
            with store.lease("t"):
                graph_over(store).invoke({"n": 6, "text": str(number)}, CONFIG, durability="sync")
            store.database.flush()
        with one.lease("t"):
            begun = one.journal.write_tool_call(a_tool_call())
            config = write_checkpoint_of(one)
            for _ in range(2):
                one.checkpointer.put_writes(config, [("messages", "w")], "task")
                one.database.flush()
            run_out(url)

            def take_over() -> None:
                with two.lease("t"):
                    two.checkpointer.get_tuple(CONFIG)
                    assert two.journal.find_repeat("t", begun.name, begun.arguments) == begun.id
                    two.journal.write_tool_call(begun.model_copy(update={"status": ToolStatus.OK}))
                    two.checkpointer.put_writes(config, [("messages", "w"), ("more", "x")], "task")
                    two.database.flush()

            notices.wait_after(take_over)
            with pytest.raises(LeaseLostError):
                write_task(one)
        notices.wait_after(lambda: delete_runs(two, ["u"]))
        one.options.write("v", "a = 1")
        said = postgres.log[before:]
        assert not [line for line in said.splitlines() if "ERROR" in line], said
        assert not [record for record in caplog.records if record.name.startswith("psycopg")]
    postgres.drop_database(url)


def test_a_wrong_assumption_prints_nothing(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Holds even if the work fails because of it before the server has answered."""
    url = postgres.create_database()
    with open_store(url) as store:
        write_thread(store, "u")
        database: Any = store.database
        fails = [True]

        def work(cursor: Any) -> str:
            answered(cursor, "SELECT value FROM meta WHERE key = 'epoch'", (), ("another",))
            if fails.pop():
                fails.append(False)
                raise KeyError("what was expected is not there")
            return "done"

        assert database.add(work) == "done"
        assert not [record for record in caplog.records if record.name.startswith("psycopg")]
    postgres.drop_database(url)


# stores of earlier versions


def test_an_older_store_is_given_what_it_lacks(url: str) -> None:
    open_store(url).close()
    execute(url, "DROP TABLE options")
    execute(url, "ALTER TABLE leases DROP COLUMN epoch")
    execute(
        url,
        "INSERT INTO leases (thread_id, owner, process, expires_at) VALUES ('t', 'o', 'host/1/1',"
        " 9e12)",
    )
    with open_store(url) as store:
        with (
            pytest.raises(HrmError, match="is being run already, by process 1 on host"),
            store.lease("t"),
        ):
            pytest.fail("a live owner was taken for dead")
        run_out(url)
        with store.lease("t"):
            assert execute(url, "SELECT epoch FROM leases") == [(1,)]
            store.options.write("t", "a = 1")
        assert store.options.read("t") == "a = 1"


def test_options_of_an_earlier_version_are_read_where_they_lie(tmp_path: Any) -> None:
    with (
        open_store(tmp_path / "store.db") as store,
        open_store(tmp_path / "copy" / "store.db") as copied,
    ):
        store.journal.write_trajectory(trajectory("t", RunStatus.COMPLETED))
        assert store.options.read("t") is None
        folder = tmp_path / "threads" / "id of t"
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text("seed = 3")
        from hrm_agent.store.upkeep.copying import copy_store

        copy_store(store, copied)
        assert copied.options.read("t") == "seed = 3"
        execute(copied.url, "UPDATE options SET record = ?", (b"\xff",))
        with pytest.raises(StoreError, match="options of thread 't' cannot be read"):
            copied.options.read("t")
