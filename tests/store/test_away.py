"""Absent servers: the length of the wait, the callers that wait, and that no others do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import psycopg
import pytest

from hrm_agent.errors import StoreError
from hrm_agent.store import RunStore, open_store
from hrm_agent.store.database import postgres_reading
from hrm_agent.store.database.postgres import PostgresDatabase
from hrm_agent.store.database.postgres_reading import Readers
from hrm_agent.store.upkeep.maintenance import prune, stats, verify
from tests.support.store.way import Way
from tests.support.store.writer import write_thread

pytestmark = pytest.mark.whole

PATIENCE = 2.0


class Clock:
    """Clock that advances only by calls of `sleep`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleeps = 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.sleeps += 1


class Opened(NamedTuple):
    store: RunStore
    way: Way
    clock: Clock


@pytest.fixture
def opened(fresh_database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    """A store whose connections were used, and the way to its server."""
    clock = Clock()
    monkeypatch.setattr(postgres_reading, "time", clock)
    monkeypatch.setattr(postgres_reading, "_PATIENCE_SECONDS", PATIENCE)
    with Way(fresh_database) as way, open_store(way.url) as store:
        store.database.write(lambda cursor: cursor.execute("CREATE TABLE noted (number INTEGER)"))
        assert store.threads() == []
        yield Opened(store, way, clock)


@pytest.mark.parametrize("asked", ["write", "read", "look"])
def test_a_server_that_is_gone_without_a_word_is_given_up(
    asked: str, fresh_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server accepts data and never answers, on old and on new connections."""
    monkeypatch.setattr(postgres_reading, "_SILENT_SECONDS", 0.2)
    monkeypatch.setattr(postgres_reading, "_PATIENCE_SECONDS", 3.0)
    with Way(fresh_database) as way, open_store(way.url) as store:
        store.database.write(lambda cursor: cursor.execute("CREATE TABLE noted (number INTEGER)"))
        assert store.threads() == []
        way.silent = True
        with pytest.raises(StoreError, match="unreachable for over 3 seconds"):
            ASKED[asked](store)
        way.silent = False
        ASKED[asked](store)


def test_a_slow_statement_of_a_server_that_is_there_is_waited_for(
    fresh_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_reading, "_SILENT_SECONDS", 0.1)
    with open_store(fresh_database) as store:
        asked = 0
        is_there = postgres_reading.PostgresReading._is_there

        def counted(database: Any) -> bool:
            nonlocal asked
            asked += 1
            return is_there(database)

        monkeypatch.setattr(postgres_reading.PostgresReading, "_is_there", counted)
        with store.database.read() as cursor:
            assert cursor.execute("SELECT 1 FROM pg_sleep(1)").fetchall() == [(1,)]
    assert asked > 0


@pytest.mark.parametrize(
    ("given", "timeout", "idle"),
    [("", "30000", "10"), ("?tcp_user_timeout=7&keepalives_idle=3", "7", "3")],
)
@pytest.mark.parametrize("read_only", [False, True])
def test_the_kernel_gives_up_a_way_within_a_lease_or_when_the_url_says(
    given: str, timeout: str, idle: str, read_only: bool, fresh_database: str
) -> None:
    open_store(fresh_database).close()
    with open_store(f"{fresh_database}{given}", read_only=read_only) as store:
        database: Any = store.database
        with database._connect() as connection:
            found = connection.info.get_parameters()
    assert (found["tcp_user_timeout"], found["keepalives_idle"]) == (timeout, idle)


def write(store: RunStore) -> None:
    store.database.write(lambda cursor: cursor.execute("INSERT INTO noted VALUES (1)"))


def read(store: RunStore) -> None:
    assert store.journal.find_call("none") is None


def look(store: RunStore) -> None:
    assert store.checkpointer.get_tuple({"configurable": {"thread_id": "none"}}) is None


ASKED = {ask.__name__: ask for ask in (write, read, look)}


def refused(asked: Opened, ask: Callable[[RunStore], None]) -> int:
    """Number of connection attempts. The error must report the refusal, not a wait for the server."""
    with pytest.raises(StoreError, match=r"unreachable for over 2 seconds: connection .*refused"):
        ask(asked.store)
    tries, asked.clock.sleeps = asked.clock.sleeps + 1, 0
    return tries


@pytest.mark.parametrize("first", ASKED)
def test_a_server_that_stays_away_is_waited_for_once(first: str, opened: Opened) -> None:
    """The first request waits until the patience is spent. The many reads and writes at the run's
    end then fail at once.
    """
    opened.way.shut()
    assert refused(opened, ASKED[first]) == pytest.approx(PATIENCE / 0.1, abs=2)
    assert [refused(opened, ask) for ask in (*ASKED.values(), *ASKED.values())] == [1] * 6
    opened.way.open()
    opened.clock.sleeps = 0
    for ask in ASKED.values():
        ask(opened.store)
    assert opened.clock.sleeps == 0, "a server that is back is found at once"
    opened.way.shut()
    assert refused(opened, ASKED[first]) > 10, "and is waited for when it goes again"


@pytest.mark.parametrize("asked", ASKED)
def test_a_server_that_comes_back_is_found_by_who_waits(asked: str, opened: Opened) -> None:
    opened.way.shut()
    sleep, waited = opened.clock.sleep, threading.Event()

    def reopened(seconds: float) -> None:
        if opened.clock.sleeps == 3:
            opened.way.open()
            waited.set()
        sleep(seconds)

    opened.clock.sleep = reopened  # type: ignore[method-assign]
    ASKED[asked](opened.store)
    assert waited.is_set() and opened.clock.sleeps == 4


class Held:
    """Stand-in for a connection."""

    def __init__(
        self, status: psycopg.pq.TransactionStatus = psycopg.pq.TransactionStatus.IDLE
    ) -> None:
        self.info = self
        self.transaction_status = status
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_readers_share_so_many_connections() -> None:
    made: list[Any] = []

    def connect() -> Any:
        made.append(Held())
        return made[-1]

    readers = Readers(connect, 2, seconds=0)
    first, second = readers.take(), readers.take()
    with pytest.raises(StoreError, match="All 2 connections for reading have been taken"):
        readers.take()
    readers.give(first)
    assert readers.take() is first and len(made) == 2
    made[0].transaction_status = psycopg.pq.TransactionStatus.INTRANS
    readers.give(first)
    assert made[0].closed and readers.take() is made[2], (
        "what is in the middle of something is nobody's"
    )
    readers.give(second)
    readers.forget()
    assert made[1].closed and not made[2].closed
    readers.close()
    readers.give(made[2])
    assert made[2].closed
    with pytest.raises(psycopg.ProgrammingError, match="closed"):
        readers.take()


def test_who_cannot_connect_takes_no_place() -> None:
    def connect() -> Any:
        raise psycopg.OperationalError("refused")

    readers = Readers(connect, 1, seconds=0)
    for _ in range(3):
        with pytest.raises(psycopg.OperationalError, match="refused"):
            readers.take()


def test_a_reader_that_is_refused_leaves_the_writer_alone(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server without room for one more connection serves the existing ones."""
    database = opened.store.database
    assert isinstance(database, PostgresDatabase)
    write(opened.store)
    writer = database._writer
    database.readers.forget()

    def refuse() -> Any:
        raise psycopg.errors.TooManyConnections("sorry, too many clients already")

    monkeypatch.setattr(database.readers, "_connect", refuse)
    with pytest.raises(StoreError, match="too many clients"):
        read(opened.store)
    write(opened.store)
    assert database._writer is writer and not writer.closed


def test_a_closed_store_is_not_waited_for(opened: Opened) -> None:
    opened.store.close()
    with pytest.raises(StoreError, match="is closed"):
        read(opened.store)
    assert opened.clock.sleeps == 0


def test_many_read_side_by_side(opened: Opened) -> None:
    """The number of readers exceeds that of the connections."""
    errors: list[BaseException] = []

    def several() -> None:
        with suppress(StoreError):
            for _ in range(20):
                read(opened.store)
            return
        errors.append(StoreError("refused"))

    threads = [threading.Thread(target=several) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and opened.clock.sleeps == 0


# a connection that is lost in the middle of a read


READS: dict[str, Callable[[RunStore], Any]] = {
    "verify": lambda store: list(verify(store)),
    "stats": stats,
    "checkpoints": lambda store: [found.checkpoint for found in store.checkpointer.list(ON)],
    "trajectory": lambda store: store.journal.find_trajectory("id of t"),
    "prune": lambda store: prune(store, older_than_seconds=1.0, dry_run=True),
}
ON: Any = {"configurable": {"thread_id": "t"}}


@pytest.mark.parametrize(
    ("asked", "read_only"),
    # `verify` reads most of all, by the same connection: once is enough
    [
        *((asked, False) for asked in READS),
        *((asked, True) for asked in READS if asked != "verify"),
    ],
)
def test_a_read_whose_connection_is_lost_at_any_moment_is_what_it_would_have_been(
    asked: str, read_only: bool, fresh_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_reading, "time", Clock())
    with open_store(fresh_database) as store:
        write_thread(store, "t")
        expected = READS[asked](store)
    broken = 0
    with Way(fresh_database) as way, open_store(way.url, read_only=read_only) as store:
        assert READS[asked](store) == expected
        for packets in range(200):
            way.breaks_after = packets
            assert READS[asked](store) == expected, f"broken after {packets} packets"
            if way.breaks_after is not None:
                break
            broken += 1
    assert broken > 1


def test_a_read_that_cannot_be_of_one_moment_any_more_is_refused(opened: Opened) -> None:
    """Data read before the connection was lost has changed since. Data not read yet may change."""
    insert = "INSERT INTO noted VALUES (?)"
    ask = "SELECT number FROM noted ORDER BY number"
    database: Any = opened.store.database
    with database.read() as cursor:
        assert cursor.execute(ask).fetchall() == []
        cursor.execute("SELECT 1").fetchall()
        opened.way.shut()
        opened.way.open()
        opened.store.database.write(
            lambda cursor: cursor.execute("CREATE TABLE another (number INTEGER)")
        )
        assert cursor.execute("SELECT count(*) FROM another").fetchone() == (0,)
        opened.way.shut()
        opened.way.open()
        opened.store.database.write(lambda cursor: cursor.execute(insert, (1,)))
        with pytest.raises(
            StoreError, match=r"lost in the middle of a read.*have changed since\. Read it again"
        ):
            cursor.execute("SELECT 2")
