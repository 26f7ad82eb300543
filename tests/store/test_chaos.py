"""Faults of a store other than kills: full disks, lost servers, lost answers, cancelled waiters,
forks, rivals.

Runs are forks of a warm process (`tests.support.graphs.kills`). Their requests are counted outside
of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

import psycopg
import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import START, StateGraph

from hrm_agent.environment import using_environment
from hrm_agent.errors import StoreError
from hrm_agent.models import using_policy
from hrm_agent.runtime.execution.loading import load_graph
from hrm_agent.store import RunStore, open_store
from hrm_agent.store.database.cursors import Cursor
from hrm_agent.store.database.database import committed
from hrm_agent.store.upkeep.maintenance import collect_values, verify
from hrm_agent.store.values.content_addressed import ValueWriter
from hrm_agent.store.values.serializer import StrictSerializer
from hrm_agent.trajectory import Recording, recording
from tests.support.graphs.kill_driver import TEAM, Arithmetic, LoggedEngine, Plan, answer
from tests.support.graphs.killed_team import Log, nodes
from tests.support.graphs.kills import (
    COMMAND,
    Driver,
    check_asked,
    check_log,
    done_in,
    killed_often,
    log_of,
    numbers,
    plan_in,
    record_of,
    untouched_record,
)
from tests.support.postgres import PostgresServer
from tests.support.store.chaos_driver import BROKEN, PAGES, plan_events
from tests.support.store.way import Way

pytestmark = pytest.mark.whole

BALLAST, STEP, STEPS = 12 * 2**20, 320 * 2**10, 4
TABLE = "CREATE TABLE IF NOT EXISTS noted (number INTEGER)"


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    opened = Driver(
        [sys.executable, "-m", "tests.support.begin", "tests.support.store.chaos_driver"]
    )
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def untouched(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Record of an undisturbed run of two tasks."""
    return untouched_record(
        driver, plan_of(tmp_path_factory.mktemp("alone")), tmp_path_factory.mktemp("alone") / "run"
    )


def plan_of(folder: Path, url: str = "", tasks: int = 2) -> Plan:
    return plan_in(folder / "plan", url, tasks=tasks, sandbox=False)


def error_of(plan: Plan) -> str:
    return Path(plan.folder, "error.txt").read_text()


# a full disk


def test_a_run_that_runs_out_of_room_goes_on_when_there_is_some(
    driver: Driver, untouched: dict[str, Any], tmp_path: Path
) -> None:
    """Each time the run ends for lack of room, some room is made, and at last enough."""
    plan, times_full = plan_of(tmp_path), 0
    for pages in (36, 55, 75):
        Path(plan.folder, PAGES).write_text(str(pages))
        assert driver.start(plan).result() == 1
        assert "StoreFullError" in error_of(plan) and "hrm-agent resume" in error_of(plan), (
            error_of(plan)
        )
        times_full += 1
    Path(plan.folder, PAGES).unlink()
    assert driver.start(plan).result() == 0
    assert record_of(plan) == untouched
    check_log(log_of(plan), plan, times_full)


@pytest.mark.slow
def test_a_run_that_fills_its_disk_goes_on_when_there_is_room(
    driver: Driver, tmp_path: Path
) -> None:
    """The disk is small. Each time the run ends for lack of room, some room is made, and at last
    enough.
    """
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    plan = plan_in(kept, f"sqlite:///{disk}/store.db", tasks=3, sandbox=False)
    expected = untouched_record(driver, plan, tmp_path / "alone")
    mount = (
        f"mount -t tmpfs -o size={BALLAST + STEP} none {disk} && head -c {BALLAST} /dev/zero >"
        f" {disk}/ballast"
    )
    namespace = (
        ["unshare", "--mount"]
        if os.geteuid() == 0
        else ["unshare", "--user", "--map-root-user", "--mount"]
    )
    small = Driver([*namespace, "sh", "-c", f'{mount} && exec "$@"', "sh", *COMMAND])
    try:
        small.start(replace(plan, tasks=0)).result()  # the disk is mounted when this has ended
        inside = Path(f"/proc/{small.pid}/root{disk}")
        times_full = 0
        while code := small.start(plan).result():
            error = (kept / "error.txt").read_text()
            assert code == 1 and "StoreFullError" in error and "hrm-agent resume" in error, error
            times_full += 1
            os.truncate(
                inside / "ballast", BALLAST - times_full * STEP if times_full < STEPS else 0
            )
            assert times_full <= STEPS, error
        for file in inside.glob("store.db*"):
            shutil.copy(file, kept)
    finally:
        small.close()
    assert times_full >= 2
    there = replace(plan, url="")
    assert record_of(there) == expected
    check_log(log_of(there), there, times_full)


# a server that is lost


@contextmanager
def restarted(postgres: PostgresServer) -> Iterator[None]:
    """Restart the server after the test, for those that follow."""
    try:
        yield
    finally:
        postgres.start()


def test_a_run_waits_for_a_server_that_restarts(
    driver: Driver,
    untouched: dict[str, Any],
    postgres: PostgresServer,
    fresh_database: str,
    tmp_path: Path,
) -> None:
    plan = plan_of(tmp_path, fresh_database)
    plan_events(plan, {20: ["signal", postgres.pid, signal.SIGQUIT]})
    with restarted(postgres):
        run = driver.start(plan)
        postgres.await_crash()
    assert run.result() == 0, error_of(plan)
    assert record_of(plan) == untouched
    check_log(log_of(plan), plan, 0)


def test_a_server_that_stays_away_ends_the_run_and_it_goes_on_later(
    driver: Driver,
    untouched: dict[str, Any],
    postgres: PostgresServer,
    fresh_database: str,
    tmp_path: Path,
) -> None:
    """`tests.store.test_away` tests the waits and their number."""
    plan = plan_of(tmp_path, fresh_database)
    plan_events(plan, {10: ["signal", postgres.pid, signal.SIGQUIT]})
    with restarted(postgres):
        code = driver.start(replace(plan, patience=1.0)).result()
        postgres.await_crash()
    assert code == 1
    error = error_of(plan)
    assert (
        "StoreError: The server of postgresql://" in error
        and "unreachable for over 1 seconds" in error
    ), error
    plan_events(plan, {})
    before, logged = done_in(plan), len(log_of(plan))
    assert driver.start(plan).result() == 0
    check_asked(before, log_of(plan)[logged:])
    check_log(log_of(plan), plan, 1)
    assert record_of(plan) == untouched


def test_lost_answers_to_commits_double_nothing(
    driver: Driver, untouched: dict[str, Any], fresh_database: str, tmp_path: Path
) -> None:
    """Some commits succeed, but the connection breaks before the answer arrives."""
    plan = plan_of(tmp_path, fresh_database)
    lost = range(3, 30, 5)  # a task alone makes more commits than that, one after the other
    with Way(fresh_database, deaf=lost) as way:
        assert driver.start(replace(plan, url=way.url)).result() == 0, error_of(plan)
        assert way.lost == len(lost)
    assert record_of(plan) == untouched
    check_log(log_of(plan), plan, 0)


class Sum(TypedDict):
    value: int


def test_a_fork_whose_commit_was_not_confirmed_is_one_fork(fresh_database: str) -> None:
    with open_store(fresh_database):  # makes the tables, which is not tried again
        pass
    with Way(fresh_database, deaf=range(0, 100, 2)) as way, open_store(way.url) as store:
        graph = (
            StateGraph(Sum)
            .add_node("n", lambda state: state)
            .add_edge(START, "n")
            .compile(store.checkpointer)
        )
        graph.invoke({"value": 1}, {"configurable": {"thread_id": "origin"}})
        newest = next(store.checkpointer.list({"configurable": {"thread_id": "origin"}}))
        for number in range(2):
            store.fork_thread("origin", f"fork {number}", newest.checkpoint["id"])
            store.checkpointer.copy_thread("origin", f"copy {number}")
        assert way.lost >= 4
        assert len(store.threads()) == 5


def test_connections_that_break_double_nothing(
    driver: Driver,
    untouched: dict[str, Any],
    postgres_url: str,
    fresh_database: str,
    tmp_path: Path,
) -> None:
    plan = plan_of(tmp_path, fresh_database)
    moments = random.Random(2).sample(range(1, 40), 5)
    plan_events(
        plan,
        {moment: ["break", postgres_url, fresh_database.rpartition("/")[2]] for moment in moments},
    )
    assert driver.start(plan).result() == 0, error_of(plan)
    broken = [int(number) for number in Path(plan.folder, BROKEN).read_text().split()]
    # the next may come before anybody has connected again
    assert len(broken) == len(moments) and broken[0] > 0
    assert record_of(plan) == untouched
    check_log(log_of(plan), plan, 0)


def test_whatever_a_lost_connection_says_is_asked_again(fresh_database: str) -> None:
    """psycopg may take the answer to an earlier statement for that to the statement that was cut
    off.
    """
    tries = 0

    def work(cursor: Cursor) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            connection = socket.socket(fileno=os.dup(cursor._cursor.connection.fileno()))
            connection.shutdown(socket.SHUT_RDWR)
            raise psycopg.ProgrammingError(
                "the last operation didn't produce records (command status: BEGIN)"
            )
        return cursor.execute("SELECT 'back'").fetchone()[0]

    with open_store(fresh_database) as store:
        assert store.database.write(work) == "back"
        with pytest.raises(StoreError, match="cannot be used: no fault of the connection"):
            store.database.write(wrong)
    assert tries == 2


def wrong(cursor: Cursor) -> None:
    raise psycopg.ProgrammingError("no fault of the connection")


# another checkpointer


def test_the_journal_beside_a_stock_checkpointer(driver: Driver, tmp_path: Path) -> None:
    """A user's graph runs on SqliteSaver inside a recording. Answered requests are not repeated."""
    alone = plan_in(tmp_path / "alone", tasks=2, sandbox=False, stock=True)
    assert driver.start(alone).result() == 0
    plan = replace(alone, folder=str(tmp_path / "killed"))
    Path(plan.folder).mkdir()
    kills, log = killed_often(driver.start, plan, iter((0, 14)), 2)
    assert kills == 2
    check_log(log, plan, kills)
    assert json.loads(plan.answers.read_text()) == json.loads(alone.answers.read_text())
    with closing(sqlite3.connect(tmp_path / "killed" / "own.db")) as own:
        assert own.execute("PRAGMA integrity_check").fetchone() == ("ok",)


# one process


@contextmanager
def held_up(store: Any) -> Iterator[threading.Event]:
    """The store's next commit waits until the event is set, or the block ends."""
    inside, go_on = threading.Event(), threading.Event()

    def wait(cursor: Cursor) -> None:
        inside.set()
        go_on.wait(60)

    thread = threading.Thread(target=lambda: store.database.write(wait))
    thread.start()
    assert inside.wait(60)
    try:
        yield go_on
    finally:
        go_on.set()
        thread.join()


async def test_a_cancelled_waiter_loses_nothing(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/store.db?level=power") as store:
        store.database.write(lambda cursor: cursor.execute(TABLE))
        with held_up(store):
            future: Future[Any] = store.database.submit(
                lambda cursor: cursor.execute("INSERT INTO noted VALUES (1)")
            )
            waiter = asyncio.create_task(committed(future))
            await asyncio.sleep(0)  # now it waits
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
        written = store.database.submit(
            lambda cursor: cursor.execute("INSERT INTO noted VALUES (2)")
        )
        await asyncio.wait_for(asyncio.to_thread(written.result), 60)
        with store.database.read() as cursor:
            assert cursor.execute("SELECT number FROM noted ORDER BY number").fetchall() == [
                (1,),
                (2,),
            ]


class Cut(Log):
    """A log that cancels a task with one of its lines, or with one of a store's transactions."""

    def __init__(self, path: Path, store: RunStore) -> None:
        super().__init__(path)
        self._loop, self._lock = asyncio.get_running_loop(), threading.Lock()
        self._task: asyncio.Task[Any] | None = None
        self._left = 0
        database: Any = store.database
        transact = database._transact

        def counted(works: Any) -> Any:
            self._count()
            return transact(works)

        database._transact = counted

    def write(self, line: str) -> None:
        super().write(line)
        self._count()

    def arm(self, task: asyncio.Task[Any] | None, events: int = 0) -> None:
        """Cancel a task after the given number of further lines and transactions (None: no task)."""
        with self._lock:
            self._task, self._left = task, events

    def _count(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left == 0 and self._task is not None:
                self._loop.call_soon_threadsafe(self._task.cancel)


async def cancelled_at(
    level: str, durability: Any, folder: Path, moments: Iterator[int], times: int
) -> None:
    """Runs in one process on one open store, each cancelled the given number of times. None counts
    as a second run.
    """
    plan = plan_in(
        folder / "run", f"sqlite:///{folder}/store.db?level={level}", graphs=(TEAM,), tasks=4
    )
    engine, environment = LoggedEngine(answer), Arithmetic()
    with (
        open_store(plan.store) as store,
        engine,
        using_policy(engine),
        using_environment(environment),
    ):
        cut = engine.log = environment.log = Cut(plan.log, store)
        nodes.append(cut)
        graph = load_graph(TEAM)
        graph = graph.copy(update={"checkpointer": store.checkpointer.allowing(graph)})
        for number, thread_id in enumerate(plan.threads, start=11):
            config: Any = {"configurable": {"thread_id": thread_id}}
            for left in reversed(range(times + 1)):
                begun = (await graph.aget_state(config)).values
                given = None if begun else {"messages": [HumanMessage(f"Team {number}")]}
                before, logged = done_in(plan), len(log_of(plan))
                with recording(Recording(store.journal, 7)):
                    running = asyncio.create_task(
                        graph.ainvoke(given, config, durability=durability)
                    )
                if left:
                    cut.arm(running, next(moments))
                    with pytest.raises(asyncio.CancelledError):
                        await running
                    cut.arm(None)
                check_asked(before, log_of(plan)[logged:])
            state = await running
            assert state["messages"][-1].text == "Answer: " + sum_of_team(number)
        assert list(verify(store)) == []
    nodes.pop()
    check_log(log_of(plan), plan, plan.tasks * times)


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("level", ["process", "power"])
async def test_a_run_that_is_cancelled_again_and_again_goes_on(
    level: str, durability: Any, tmp_path: Path
) -> None:
    rng = random.Random(level + durability)
    await cancelled_at(level, durability, tmp_path, iter(lambda: rng.randint(1, 8), 0), 3)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("level", ["process", "power"])
async def test_a_run_that_is_cancelled_many_times_goes_on(
    level: str, durability: Any, tmp_path: Path
) -> None:
    for seed in range(6):
        rng = random.Random(f"{level} {durability} {seed}")
        await cancelled_at(
            level, durability, tmp_path / str(seed), iter(lambda rng=rng: rng.randint(1, 8), 0), 3
        )


def sum_of_team(number: int) -> str:
    parts = (
        f"<reason>done</reason><answer>\\boxed{{{number * factor}}}</answer>" for factor in (13, 17)
    )
    return f"Add {number}: {' and '.join(parts)}"


@pytest.mark.parametrize("level", ["process", "power"])
def test_what_was_to_be_done_later_is_read_while_it_is_committed(
    level: str, tmp_path: Path
) -> None:
    with open_store(f"sqlite:///{tmp_path}/store.db?level={level}") as store:
        store.database.write(lambda cursor: cursor.execute(TABLE))
        begun = threading.Event()

        def slowly(cursor: Cursor) -> None:
            begun.set()
            time.sleep(0.1)
            cursor.execute("INSERT INTO noted VALUES (1)")

        store.database.defer(slowly)
        assert begun.wait(60), "it was not done by itself"
        with store.database.read() as cursor:
            assert cursor.execute("SELECT number FROM noted").fetchall() == [(1,)]


@pytest.mark.parametrize("level", ["process", "power"])
def test_a_fork_opens_a_store_of_its_own(level: str, tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/store.db?level={level}") as store:
        child = os.fork()
        if child == 0:
            signal.alarm(120)  # the end of a fork that waits for a thread which it does not have
            os._exit(said_in_fork(store))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        store.database.write(lambda cursor: cursor.execute(TABLE))
        assert list(verify(store)) == []


def said_in_fork(store: Any) -> int:
    """0 if the parent's store refuses in words whatever is asked of it,
    and closes without waiting.
    """
    asked = (
        lambda: store.database.write(lambda cursor: None),
        lambda: store.journal.find_call("one"),
        lambda: store.database.defer(lambda cursor: None),
    )
    for number, ask in enumerate(asked, start=1):
        try:
            ask()
            return number
        except StoreError as error:
            if "Call open_store in each process." not in error.hint:
                return 10 + number
    store.close()
    return 0


def test_a_value_collected_while_it_was_named_is_handed_in_again(tmp_path: Path) -> None:
    """Another process collects between the encoding of a value and its commit, and another write
    notices first.
    """
    value, serializer = "a value that nothing names yet " * 10, StrictSerializer()
    with open_store(tmp_path / "store.db") as store, open_store(tmp_path / "store.db") as other:
        named: list[bytes] = []

        def plainly(writer: ValueWriter) -> bytes:
            return writer.reference(value)

        def meanwhile(writer: ValueWriter) -> bytes:
            reference = plainly(writer)
            if not named:
                named.append(reference)
                assert collect_values(other) == 1
                store.blobs.write(
                    serializer, lambda w: w.reference("another value " * 10), lambda *_: None
                ).result()
            return reference

        for encode in (plainly, meanwhile):
            store.blobs.write(serializer, encode, lambda *_: None).result()
        with store.database.read() as cursor:
            assert cursor.execute("SELECT 1 FROM blobs WHERE hash = ?", named).fetchall() == [(1,)]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_journal_beside_a_stock_checkpointer_killed_often(
    driver: Driver, tmp_path: Path
) -> None:
    kills = 0
    for number in range(4):
        plan = plan_in(tmp_path / str(number), tasks=6, sandbox=False, stock=True)
        count, log = killed_often(driver.start, plan, numbers(number, 12), 8)
        check_log(log, plan, count)
        kills += count
    assert kills >= 20
