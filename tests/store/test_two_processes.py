"""Several real processes on one store: no data is lost, no process finds the database locked, and a
thread has one run.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from hrm_agent.errors import RunError
from hrm_agent.store import RunStore, open_store
from hrm_agent.store.database.postgres import _LOCK
from hrm_agent.store.upkeep.maintenance import verify
from hrm_agent.testing import block_until
from hrm_agent.trajectory import RunStatus
from tests.support.postgres import PostgresServer
from tests.support.store.bodies import execute
from tests.support.store.processes import Writer, writers
from tests.support.store.writer import STEPS, THREADS, call, hold, run, write

pytestmark = pytest.mark.whole

NAMES = ("first", "second", "third")


@pytest.fixture(params=["sqlite", "sqlite power", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path, postgres: PostgresServer) -> Iterator[str]:
    if request.param == "postgresql":
        database = postgres.create_database()
        yield database
        postgres.drop_database(database)
    else:
        yield f"sqlite:///{tmp_path}/store.db" + (
            "?level=power" if "power" in request.param else ""
        )


def test_processes_write_side_by_side(url: str) -> None:
    """The processes also create the store at the same moment, and another reads meanwhile."""
    with writers(url, write, *NAMES) as processes:
        for process in processes:
            process.begin()
        with open_store(url) as store:
            while not all(process.line.poll(0) for process in processes):
                assert all(
                    found.checkpoint["channel_values"]
                    for found in store.checkpointer.list(None, limit=20)
                )
                assert len(store.threads()) <= len(NAMES) * THREADS
        assert [process.says() for process in processes] == ["done"] * len(NAMES)
    with open_store(url) as store:
        assert Counter(info.status for info in store.threads()) == {
            RunStatus.COMPLETED: len(NAMES) * THREADS
        }
        for thread in (f"{name} {i}" for name in NAMES for i in range(THREADS)):
            check_thread(store, thread)
        assert list(verify(store)) == []


def test_a_store_that_two_make_at_the_same_moment(postgres: PostgresServer) -> None:
    """Each has seen that the store is missing, and one waits for the other."""
    database = postgres.create_database()

    def opened(_: int) -> int:
        with open_store(database) as store:
            return len(store.threads())

    waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with psycopg.connect(database) as first, ThreadPoolExecutor(2) as pool:
        first.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        found = pool.map(opened, range(2))
        block_until(lambda: len(execute(database, waiting)) == 2)
        first.rollback()
        assert list(found) == [0, 0]
    postgres.drop_database(database)


def check_thread(store: RunStore, thread: str) -> None:
    found = [*store.checkpointer.list({"configurable": {"thread_id": thread}})]
    assert [step.checkpoint["channel_values"].get("n") for step in found] == [
        *range(STEPS, -1, -1),
        None,
    ]
    assert [len(step.pending_writes or ()) for step in found[1:]] == [2] + [3] * STEPS
    assert store.journal.trajectory(f"id of {thread}").calls == tuple(
        call(thread, i) for i in range(STEPS)
    )


def test_a_thread_has_one_run(url: str) -> None:
    """Holds without a lease: a run writes nothing more once it finds that another continued the
    thread.
    """
    with writers(url, run, "t", "t") as processes:
        for process in processes:
            process.begin()
        assert [process.says() for process in processes] == ["has read the thread"] * 2
        for process in processes:
            process.line.send("go on")
        words = sorted(process.says() for process in processes)
    assert words[1] == "done"
    assert words[0].startswith("RunError: Thread 't' was continued by another run")
    with open_store(url) as store:
        steps = [*store.checkpointer.list({"configurable": {"thread_id": "t"}})]
    assert max(Counter(str(step.parent_config) for step in steps).values()) == 1, (
        "the thread was forked"
    )
    assert steps[0].checkpoint["channel_values"]["n"] == STEPS


@contextmanager
def holder(url: str) -> Iterator[Writer]:
    """A process that holds the lease of the thread `t`."""
    with writers(url, hold, "t") as (process,):
        process.begin()
        assert process.says() == "held"
        yield process


def test_a_thread_that_is_held_is_refused(url: str) -> None:
    with open_store(url) as store, holder(url) as process:
        with pytest.raises(
            RunError, match=f"'t' is being run already, by process {process.process.pid} on .*fork"
        ):
            take(store)
        with writers(url, hold, "t") as (second,):
            second.begin()
            assert second.says().startswith("RunError: Thread 't' is being run already")
        with store.lease("another"):
            pass
        process.line.send("enough")
        assert process.says() == "done"
        take(store)


def take(store: RunStore) -> None:
    with store.lease("t"):
        pass


def test_a_thread_whose_owner_was_killed_is_free_at_once(url: str) -> None:
    with open_store(url) as store, holder(url) as process:
        os.kill(process.process.pid or 0, signal.SIGSTOP)  # it hangs, and may go on at any moment
        with pytest.raises(RunError, match="is being run already"):
            take(store)
        process.kill()
        take(store)  # a lease is had or refused, never waited for


def test_an_owner_on_another_machine_is_waited_for(url: str) -> None:
    with open_store(url) as store, holder(url) as process:
        process.kill()
        elsewhere = ("elsewhere/1/1", time.time() + 3600)
        execute(url, "UPDATE leases SET process = ?, expires_at = ?", elsewhere)
        with pytest.raises(RunError, match="by process 1 on elsewhere"):
            take(store)
        execute(url, "UPDATE leases SET expires_at = ?", (time.time() - 1,))
        take(store)


def test_a_number_that_was_given_to_another_process_is_no_owner(url: str) -> None:
    with open_store(url) as store, holder(url) as process:
        process.kill()
        ((owner,),) = execute(url, "SELECT process FROM leases")
        host, _, _, *place = owner.split("/")
        execute(
            url,
            "UPDATE leases SET process = ?",
            ("/".join((host, str(os.getppid()), "1", *place)),),
        )
        take(store)


def test_a_lease_is_one_in_its_own_process_too(url: str) -> None:
    with open_store(url) as store, store.lease("t"):
        with pytest.raises(RunError, match="by this process"):
            take(store)
        with open_store(url) as other, pytest.raises(RunError, match=f"by process {os.getpid()}"):
            take(other)
