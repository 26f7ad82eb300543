"""What a store goes through beside kills: full disks, lost servers, lost answers, cancelled waiters, forks, rivals.

Runs are forks of a warm process (`tests.graphs.kills`); what they asked is counted outside of them.
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
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypedDict

import psycopg
import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import START, StateGraph

from graphs.loading import load_graph
from hrm_agent.environment import using_environment
from hrm_agent.errors import StoreError
from hrm_agent.models import using_policy
from hrm_agent.store import open_store
from hrm_agent.store.care import collect_values, verify
from hrm_agent.store.database import Cursor, settled
from hrm_agent.store.serializer import StrictSerializer
from hrm_agent.store.values import ValueWriter
from hrm_agent.trajectory import Recording, recording
from tests.graphs.kill_driver import TEAM, Arithmetic, LoggedEngine, Plan, answer
from tests.graphs.killed_team import Log, nodes
from tests.graphs.kills import (
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
from tests.postgres import PostgresServer

BALLAST, STEP, STEPS = 12 * 2**20, 320 * 2**10, 4
TABLE = "CREATE TABLE IF NOT EXISTS noted (number INTEGER)"


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    opened = Driver()
    yield opened
    opened.close()


# a full disk


def test_a_run_that_fills_its_disk_goes_on_when_there_is_room(driver: Driver, tmp_path: Path) -> None:
    """On a small disk of its own. Some room is made whenever the run has ended for want of it, and at last enough."""
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    plan = plan_in(kept, f"sqlite:///{disk}/store.db", tasks=3, sandbox=False)
    untouched = untouched_record(driver, plan, tmp_path / "alone")
    mount = f"mount -t tmpfs -o size={BALLAST + STEP} none {disk} && head -c {BALLAST} /dev/zero > {disk}/ballast"
    namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    small = Driver([*namespace, "sh", "-c", f'{mount} && exec "$@"', "sh", *COMMAND])
    try:
        small.start(replace(plan, tasks=0)).result()  # the disk is mounted when this has ended
        inside = Path(f"/proc/{small.pid}/root{disk}")
        times_full = 0
        while code := small.start(plan).result():
            error = (kept / "error.txt").read_text()
            assert code == 1 and "StoreFullError" in error and "hrm-agent resume" in error, error
            times_full += 1
            os.truncate(inside / "ballast", BALLAST - times_full * STEP if times_full < STEPS else 0)
            assert times_full <= STEPS, error
        for file in inside.glob("store.db*"):
            shutil.copy(file, kept)
    finally:
        small.close()
    assert times_full >= 2
    there = replace(plan, url="")
    assert record_of(there) == untouched
    check_log(log_of(there), there, times_full)


# a server that is lost


def test_a_run_waits_for_a_server_that_restarts(
    driver: Driver, postgres: PostgresServer, fresh_database: str, tmp_path: Path
) -> None:
    plan = plan_in(tmp_path / "restarted", fresh_database, tasks=4, sandbox=False)
    untouched = untouched_record(driver, plan, tmp_path / "alone")
    run = driver.start(plan)
    wait_for_lines(plan, 20)
    postgres.restart()
    assert run.result() == 0, (tmp_path / "restarted" / "error.txt").read_text()
    assert record_of(plan) == untouched
    check_log(log_of(plan), plan, 0)


def test_a_server_that_stays_away_ends_the_run_and_it_goes_on_later(
    driver: Driver, postgres: PostgresServer, fresh_database: str, tmp_path: Path
) -> None:
    plan = plan_in(tmp_path / "away", fresh_database, tasks=3, sandbox=False)
    untouched = untouched_record(driver, plan, tmp_path / "alone")
    run = driver.start(replace(plan, patience=1.0))
    wait_for_lines(plan, 10)
    postgres.crash()
    clock = time.monotonic()
    try:
        assert run.result() == 1
        assert time.monotonic() - clock < 20, "each of its writes waited anew"
    finally:
        postgres.start()
    error = (tmp_path / "away" / "error.txt").read_text()
    assert "StoreError: The server of postgresql://" in error and "away for more than 1 seconds" in error, error
    before, logged = done_in(plan), len(log_of(plan))
    assert driver.start(plan).result() == 0
    check_asked(before, log_of(plan)[logged:])
    check_log(log_of(plan), plan, 1)
    assert record_of(plan) == untouched


def test_lost_answers_to_commits_double_nothing(driver: Driver, fresh_database: str, tmp_path: Path) -> None:
    """Every tenth commit is done, and its answer does not arrive: the connection breaks instead."""
    plan = plan_in(tmp_path / "lost", fresh_database, tasks=2, sandbox=False)
    untouched = untouched_record(driver, plan, tmp_path / "alone")
    with Deaf(fresh_database, every=10) as proxy:
        assert driver.start(replace(plan, url=proxy.url)).result() == 0, (tmp_path / "lost/error.txt").read_text()
        assert proxy.lost >= 5
    assert record_of(plan) == untouched
    check_log(log_of(plan), plan, 0)


class Sum(TypedDict):
    value: int


def test_a_fork_whose_commit_was_not_confirmed_is_one_fork(fresh_database: str) -> None:
    with Deaf(fresh_database, every=2) as proxy, open_store(proxy.url) as store:
        graph = StateGraph(Sum).add_node("n", lambda state: state).add_edge(START, "n").compile(store.checkpointer)
        graph.invoke({"value": 1}, {"configurable": {"thread_id": "origin"}})
        newest = next(store.checkpointer.list({"configurable": {"thread_id": "origin"}}))
        for number in range(4):
            store.fork_thread("origin", f"fork {number}", newest.checkpoint["id"])
            store.checkpointer.copy_thread("origin", f"copy {number}")
        assert proxy.lost >= 4
        assert len(store.threads()) == 9


def test_connections_that_break_at_any_moment_double_nothing(
    driver: Driver, postgres_url: str, fresh_database: str, tmp_path: Path
) -> None:
    plan = plan_in(tmp_path / "broken", fresh_database, tasks=4, sandbox=False)
    untouched = untouched_record(driver, plan, tmp_path / "alone")
    run, broken, ended = driver.start(plan), 0, threading.Event()
    wait_for_lines(plan, 5)
    name = fresh_database.rpartition("/")[2]

    def break_connections() -> None:
        nonlocal broken
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            while not ended.wait(0.4):
                query = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s"
                broken += (connection.execute(query, (name,)).fetchone() or (0,))[0]

    thread = threading.Thread(target=break_connections)
    thread.start()
    code = run.result()
    ended.set()
    thread.join()
    assert code == 0, (tmp_path / "broken" / "error.txt").read_text()
    assert broken >= 3
    assert record_of(plan) == untouched
    check_log(log_of(plan), plan, 0)


def test_whatever_a_lost_connection_says_is_asked_again(fresh_database: str) -> None:
    """psycopg has been seen to take the answer to an earlier statement for that of the one which was cut off."""
    tries = 0

    def work(cursor: Cursor) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            connection = socket.socket(fileno=os.dup(cursor._cursor.connection.fileno()))
            connection.shutdown(socket.SHUT_RDWR)
            raise psycopg.ProgrammingError("the last operation didn't produce records (command status: BEGIN)")
        return cursor.execute("SELECT 'back'").fetchone()[0]

    with open_store(fresh_database) as store:
        assert store.database.write(work) == "back"
        with pytest.raises(StoreError, match="cannot be used: no fault of the connection"):
            store.database.write(wrong)
    assert tries == 2


def wrong(cursor: Cursor) -> None:
    raise psycopg.ProgrammingError("no fault of the connection")


def wait_for_lines(plan: Plan, lines: int) -> None:
    deadline = time.monotonic() + 60
    while len(log_of(plan)) < lines:
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Deaf:
    """A proxy before a server that breaks a connection when a commit is done, before the client is told."""

    def __init__(self, url: str, every: int) -> None:
        place, _, name = url.rpartition("/")
        before, _, port = place.rpartition(":")
        self._server = ("127.0.0.1", int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"{before}:{self._listener.getsockname()[1]}/{name}"
        self.lost = self._commits = 0
        self._every = every

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(self._server)
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pass, args=(client, server, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, True), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if answers and b"C\x00\x00\x00\x0bCOMMIT\x00" in data:
                    self._commits += 1
                    if self._commits % self._every == 0:
                        self.lost += 1
                        break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


# another checkpointer


def test_the_journal_beside_a_stock_checkpointer(driver: Driver, tmp_path: Path) -> None:
    """A graph that its user runs on SqliteSaver, inside a recording: what was answered is not asked again."""
    alone = plan_in(tmp_path / "alone", tasks=4, sandbox=False, stock=True)
    assert driver.start(alone).result() == 0
    plan = replace(alone, folder=str(tmp_path / "killed"))
    Path(plan.folder).mkdir()
    kills, log = killed_often(driver.start, plan, numbers(2, 25), 3)
    assert kills >= 2
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
        go_on.wait(10)

    thread = threading.Thread(target=lambda: store.database.write(wait))
    thread.start()
    inside.wait(10)
    try:
        yield go_on
    finally:
        go_on.set()
        thread.join()


async def test_a_cancelled_waiter_loses_nothing(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/store.db?level=power") as store:
        store.database.write(lambda cursor: cursor.execute(TABLE))
        with held_up(store):
            future: Future[Any] = store.database.submit(lambda cursor: cursor.execute("INSERT INTO noted VALUES (1)"))
            waiter = asyncio.create_task(settled(future))
            await asyncio.sleep(0.01)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
        written = store.database.submit(lambda cursor: cursor.execute("INSERT INTO noted VALUES (2)"))
        await asyncio.wait_for(asyncio.to_thread(written.result), 5)
        with store.database.read() as cursor:
            assert cursor.execute("SELECT number FROM noted ORDER BY number").fetchall() == [(1,), (2,)]


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("level", ["process", "power"])
async def test_a_run_that_is_cancelled_again_and_again_goes_on(level: str, durability: Any, tmp_path: Path) -> None:
    """In one process and on one open store, and never taken for a second run on its thread."""
    plan = plan_in(tmp_path / "run", f"sqlite:///{tmp_path}/store.db?level={level}", graphs=(TEAM,), tasks=6)
    nodes.append(Log(plan.log))
    engine, environment, moments = LoggedEngine(answer), Arithmetic(), random.Random(level + durability)
    engine.log = environment.log = nodes[-1]
    cancelled = 0
    with open_store(plan.store) as store, engine, using_policy(engine), using_environment(environment):
        graph = load_graph(TEAM)
        graph = graph.copy(update={"checkpointer": store.checkpointer.allowing(graph)})
        for number, thread_id in enumerate(plan.threads, start=11):
            config: Any = {"configurable": {"thread_id": thread_id}}
            state: dict[str, Any] = {}
            while not state:
                begun = (await graph.aget_state(config)).values
                given = None if begun else {"messages": [HumanMessage(f"Team {number}")]}
                before, logged = done_in(plan), len(log_of(plan))
                with recording(Recording(store.journal, 7)):
                    running = asyncio.create_task(graph.ainvoke(given, config, durability=durability))
                await asyncio.wait([running], timeout=moments.random() * 0.06)
                running.cancel()
                with suppress(asyncio.CancelledError):
                    state = await running
                cancelled += not state
                check_asked(before, log_of(plan)[logged:])
            assert state["messages"][-1].text == "Answer: " + sum_of_team(number)
        assert list(verify(store)) == []
    nodes.pop()
    assert cancelled >= 6
    check_log(log_of(plan), plan, cancelled)


def sum_of_team(number: int) -> str:
    parts = (f"<reason>done</reason><answer>\\boxed{{{number * factor}}}</answer>" for factor in (13, 17))
    return f"Add {number}: {' and '.join(parts)}"


@pytest.mark.parametrize("level", ["process", "power"])
def test_what_was_to_be_done_later_is_read_while_it_is_committed(level: str, tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/store.db?level={level}") as store:
        store.database.write(lambda cursor: cursor.execute(TABLE))
        begun = threading.Event()

        def slowly(cursor: Cursor) -> None:
            begun.set()
            time.sleep(0.1)
            cursor.execute("INSERT INTO noted VALUES (1)")

        store.database.later(slowly)
        assert begun.wait(5), "it was not done by itself"
        with store.database.read() as cursor:
            assert cursor.execute("SELECT number FROM noted").fetchall() == [(1,)]


@pytest.mark.parametrize("level", ["process", "power"])
def test_a_fork_opens_a_store_of_its_own(level: str, tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/store.db?level={level}") as store:
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # the end of a fork that waits for a thread which it does not have
            os._exit(said_in_fork(store))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        store.database.write(lambda cursor: cursor.execute(TABLE))
        assert list(verify(store)) == []


def said_in_fork(store: Any) -> int:
    """0 if the parent's store refuses in words whatever is asked of it, and closes without waiting."""
    asked = (
        lambda: store.database.write(lambda cursor: None),
        lambda: store.journal.find_call("one"),
        lambda: store.database.later(lambda cursor: None),
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
    """Another process collects between the encoding of a value and its commit, and another write notices first."""
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
                store.blobs.write(serializer, lambda w: w.reference("another value " * 10), lambda *_: None).result()
            return reference

        for encode in (plainly, meanwhile):
            store.blobs.write(serializer, encode, lambda *_: None).result()
        with store.database.read() as cursor:
            assert cursor.execute("SELECT 1 FROM blobs WHERE hash = ?", named).fetchall() == [(1,)]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_journal_beside_a_stock_checkpointer_killed_often(driver: Driver, tmp_path: Path) -> None:
    kills = 0
    for number in range(4):
        plan = plan_in(tmp_path / str(number), tasks=6, sandbox=False, stock=True)
        count, log = killed_often(driver.start, plan, numbers(number, 12), 8)
        check_log(log, plan, count)
        kills += count
    assert kills >= 20
