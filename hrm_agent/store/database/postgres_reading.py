"""Reading of a PostgreSQL store: snapshot transactions, and retries while the server is away.

A store that is opened read-only has no writing connection, and its server refuses writes
(`default_transaction_read_only`).

A reader takes an idle connection, or opens one in the reader's thread. So if the server cannot be
reached, the reader gets the error at once, and the store decides how long to retry, as it does for
its writing connection. The alternative would be a pool that connects in a background thread. It
would delay the reader by a whole timeout and, once the server is back, by the rest of the pool's
pause between attempts.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from hrm_agent.errors import (
    StoreChangedError,
    StoreError,
    StoreFullError,
    StoreVersionError,
    to_install,
)
from hrm_agent.store.database.cursors import Cursor
from hrm_agent.store.database.database import Database
from hrm_agent.store.database.leases import LEASE_SECONDS
from hrm_agent.store.database.read_only import ReadOnlyDatabase, made_earlier
from hrm_agent.store.database.tables import (
    FIRST_FORWARD,
    STORE_VERSION,
    table_names,
    temporary_tables,
)

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    from hrm_agent.store.database.postgres_cursors import ReadTransaction, sum_of
    from hrm_agent.store.database.tables import POSTGRES_TYPES, missing_tables, stored_version
except ImportError as error:
    raise StoreError(
        "A PostgreSQL store needs psycopg, which is not installed.",
        f"Run `{to_install('postgres')}`.",
    ) from error

__all__ = ["LOST", "Connection", "PostgresReading", "ReadOnlyPostgres", "Readers"]

Connection = psycopg.Connection[Any]


class Readers:
    """Pool of at most `most` connections. They stay open for the next reader."""

    def __init__(self, connect: Callable[[], Connection], most: int, seconds: float) -> None:
        """`seconds`: time limit for a reader to wait if all connections are taken."""
        self._connect = connect
        self._most = most
        self._seconds = seconds
        self._places = threading.BoundedSemaphore(most)
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._closed = False

    def take(self) -> Connection:
        """Take a connection until `give`. Raises the errors of connecting, or `StoreError`."""
        if not self._places.acquire(timeout=self._seconds):
            raise StoreError(
                f"All {self._most} connections for reading have been taken for {self._seconds:.0f}"
                " seconds.",
                "Read in fewer threads at a time, and finish each iteration over the store.",
            )
        try:
            with self._lock:
                if self._closed:
                    raise psycopg.ProgrammingError("it was closed")
                found = self._idle.pop() if self._idle else None
            return found or self._connect()
        except BaseException:
            self._places.release()
            raise

    def give(self, connection: Connection) -> None:
        """Return a connection. It is closed if it is lost or inside a transaction."""
        with self._lock:
            usable = (
                connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
                and not self._closed
            )
            if usable:
                self._idle.append(connection)
        if not usable:
            _end(connection)
        self._places.release()

    def forget(self) -> None:
        """Close idle connections. If one was lost, all may be."""
        with self._lock:
            idle = self._idle
            self._idle = []
        for connection in idle:
            _end(connection)

    def close(self) -> None:
        """Close all connections. Taken ones are closed when they are returned."""
        self._closed = True
        self.forget()


def _end(connection: Connection) -> None:
    with suppress(psycopg.Error):
        connection.close()


T = TypeVar("T")
_READERS = 4
_PATIENCE_SECONDS = 60.0
"""Longest wait in seconds for a server that is away."""
_LOOKING_SECONDS = 1.0
"""Longest wait in seconds in a read-only store."""
_ANSWER_SECONDS = 10.0
"""Longest duration in seconds of one attempt to connect."""
_BRIEFLY_SECONDS = 2.0
"""Longest duration in seconds of one attempt to connect after the server was given up."""
_SILENT_SECONDS = LEASE_SECONDS / 3
"""Silence in seconds after which a new connection checks that the server is alive. A statement may
take longer.
"""
_WAYS: dict[str, int] = {
    "keepalives": 1,
    "keepalives_idle": max(round(LEASE_SECONDS / 3), 1),
    "keepalives_interval": max(round(LEASE_SECONDS / 6), 1),
    "keepalives_count": 4,
    "tcp_user_timeout": round(LEASE_SECONDS * 1000),
}
"""Default options of a connection. If its packets are lost, it is given up within a lease."""
_QUERY_SECONDS = 30
"""Longest duration in seconds of one query in a read-only store."""
LOST = (psycopg.OperationalError, psycopg.InterfaceError)
"""Errors of a lost connection."""


class WatchedConnection(psycopg.Connection[Any]):
    """Connection that does not wait forever for a server that has silently gone.

    The kernel gives up a connection without acknowledgements. If something in between still
    acknowledges (a proxy, a host with stopped processes), only a new connection distinguishes a
    lost server from a slow statement.
    """

    is_there: Callable[[], bool] = staticmethod(lambda: True)

    def wait(self, gen: Generator[Any, Any, T], *options: Any, **named: Any) -> T:
        return super().wait(self._watched(gen), *options, **named)

    def _watched(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        due = time.monotonic() + _SILENT_SECONDS
        try:
            ready = yield next(gen)
            while True:
                if not ready and time.monotonic() >= due:
                    if not self.is_there():
                        self.close()
                        raise psycopg.OperationalError("the server does not answer any more")
                    due = time.monotonic() + _SILENT_SECONDS
                ready = yield gen.send(ready)
        except StopIteration as end:
            return end.value


class PostgresReading(Database):
    """Read access to a PostgreSQL database with this project's tables in its search path."""

    is_blocking = True
    level = "power"
    server_clock = "extract(epoch FROM clock_timestamp())::float8"

    def __init__(self, url: str) -> None:
        super().__init__()
        self._conninfo = url
        self.url = _without_password(url)
        self.folder = Path("runs")
        self._named = set(conninfo_to_dict(url))
        self._patient_until = 0.0
        self.readers = Readers(self._connect, _READERS, _ANSWER_SECONDS)
        self._given_up = False

    @property
    def _patience_seconds(self) -> float:
        return _PATIENCE_SECONDS

    def _connect(self) -> psycopg.Connection[Any]:
        """Connect with defaults for options that the URL does not set."""
        options = {name: value for name, value in _WAYS.items() if name not in self._named}
        if "connect_timeout" not in self._named:
            options["connect_timeout"] = round(self._seconds_to_connect())
        connection = WatchedConnection.connect(self._conninfo, autocommit=True, **options)  # pyright: ignore[reportArgumentType]
        connection.is_there = self._is_there
        return connection

    def _seconds_to_connect(self) -> float:
        """Timeout of one attempt, within the time that is left to wait for the server."""
        if self._given_up:
            return _BRIEFLY_SECONDS
        left = self._patient_until - time.monotonic()
        return min(max(left, _BRIEFLY_SECONDS), _ANSWER_SECONDS) if left > 0 else _ANSWER_SECONDS

    def _is_there(self) -> bool:
        """True if the server answers a new connection, even by a refusal."""
        try:
            PostgresReading._connect(self).close()
        except psycopg.Error as error:
            return error.sqlstate is not None
        return True

    @abstractmethod
    def doubt_all(self) -> None:
        """Doubt all connections after one was lost."""

    def _refuse_newer(self, version: int) -> None:
        if version > STORE_VERSION:
            raise StoreVersionError(
                f"The store {self.url} has schema version {version}; versions up to {STORE_VERSION}"
                " are known here.",
                "Nothing was changed. Update with `pip install --upgrade hrm-agent`, or name"
                " another store.",
            )

    def patiently(self, attempt: Callable[[], T]) -> T:
        """Result of `attempt`, repeated while the server is away. Raises `StoreError` after a
        minute, or after a second in a read-only store.

        After that, later calls try only once, since a run that ends because its store is away makes
        many calls while it closes.
        """
        deadline = self._patient_until = time.monotonic() + (
            0 if self._given_up else self._patience_seconds
        )
        while True:
            try:
                result = attempt()
                self._given_up = False
                return result
            except LOST as error:
                self.doubt_all()
                if _is_final(error):
                    raise self.store_error(error) from error
                if self._given_up or time.monotonic() >= deadline:
                    self._given_up = True
                    raise StoreError(
                        f"The server of {self.url} has been unreachable for over"
                        f" {self._patience_seconds:.0f} seconds: {_words(error)}.",
                        "What was committed is intact: start the server, then `hrm-agent resume`"
                        " the run.",
                    ) from error
                time.sleep(0.1)
            except psycopg.Error as error:
                raise self.store_error(error) from error

    def read_once(self, reading: Callable[[Cursor], T]) -> T:
        self._refuse_unusable()
        self.flush()

        def attempt() -> T:
            with self._begun(goes_on=False) as cursor:
                return reading(cursor)

        return self.patiently(attempt)

    @contextmanager
    def _read(self) -> Generator[Cursor]:
        try:
            with self._begun(goes_on=True) as cursor:
                yield cursor
        except psycopg.Error as error:
            raise self.store_error(error) from error

    @contextmanager
    def _begun(self, *, goes_on: bool) -> Generator[ReadTransaction]:
        """Begin a snapshot. `goes_on`: repeat the read on another connection if this one is
        lost.
        """
        moment = _Moment(self, goes_on=goes_on)
        try:
            yield ReadTransaction(moment.ask)
        finally:
            moment.end()

    def size(self) -> int:
        query = (
            "SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class WHERE relkind = 'r'"
            " AND relname IN "
        )
        names = table_names()
        with self.read() as cursor:
            found = cursor.execute(f"{query} ({', '.join('?' * len(names))})", names).fetchone()
        return int(found[0])

    def problems(self) -> list[str]:
        return []  # PostgreSQL checks its pages itself (data_checksums, pg_amcheck)

    def store_error(self, error: Exception) -> StoreError:
        if isinstance(error, psycopg.errors.DiskFull):
            return StoreFullError(
                f"The disk of the server of {self.url} is full.",
                "What was committed is intact: free some space, then `hrm-agent resume` the run.",
            )
        return StoreError(
            f"The store {self.url} cannot be used: {_words(error)}.",
            "Check that the server runs and that the URL is right.",
        )


class _Moment:
    """Snapshot transaction on a connection of its own. It begins with the first statement.

    If the connection is lost later, it starts again on another one. All statements are repeated,
    and their answers must be equal. Then the new snapshot is equivalent to the old one for the
    reader.
    """

    def __init__(self, database: PostgresReading, *, goes_on: bool) -> None:
        self._database = database
        self._goes_on = goes_on
        self._connection: psycopg.Connection[Any] | None = None
        self._asked: list[tuple[bytes, Sequence[Any], tuple[int, int]]] = []
        self._newest: tuple[bytes, Sequence[Any], psycopg.Cursor[Any]] | None = None
        """Newest statement with its answer, which is hashed when another one follows."""

    def ask(self, query: bytes, values: Sequence[Any]) -> psycopg.Cursor[Any]:
        if self._newest is not None and self._goes_on:
            self._asked.append((*self._newest[:2], sum_of(self._newest[2])))
        cursor = self._answer(query, values)
        self._newest = (query, values, cursor)
        return cursor

    def _answer(self, query: bytes, values: Sequence[Any]) -> psycopg.Cursor[Any]:
        if self._connection is not None:
            try:
                return self._connection.cursor().execute(query, values)
            except LOST:
                if not self._goes_on:  # its reader starts again
                    raise
                self._database.doubt_all()
        return self._database.patiently(lambda: self._begin(query, values))

    def _begin(self, query: bytes, values: Sequence[Any]) -> psycopg.Cursor[Any]:
        self.end()
        connection = self._database.readers.take()
        try:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            for asked, given, answer in self._asked:
                if sum_of(connection.cursor().execute(asked, given)) != answer:
                    raise StoreChangedError(
                        f"The connection to {self._database.url} was lost in the middle of a read,"
                        " and the rows that had been read by then have changed since.",
                        "Read it again.",
                    )
            cursor = connection.cursor().execute(query, values)
        except BaseException:
            self._database.readers.give(connection)
            raise
        self._connection = connection
        return cursor

    def end(self) -> None:
        """Return the connection."""
        connection = self._connection
        self._connection = None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.execute("ROLLBACK")
            self._database.readers.give(connection)


class ReadOnlyPostgres(ReadOnlyDatabase, PostgresReading):
    """PostgreSQL store for reading. A read inside a read of the same thread shares its snapshot."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._within = threading.local()
        self._missing = list[str]()
        """Statements for temporary tables on each connection, which replace tables that an earlier
        version's store lacks.
        """
        try:
            with self._connect() as connection:
                version = stored_version(connection.cursor())
                missing = missing_tables(connection.cursor()) if version is not None else set[str]()
        except psycopg.Error as error:
            raise self.store_error(error) from error
        if version is None:
            raise StoreError(f"There is no store at {self.url}.", "`hrm-agent run TASK` makes one.")
        self._refuse_newer(version)
        if version < FIRST_FORWARD:
            raise made_earlier(self.url)
        self._missing = temporary_tables(missing, **POSTGRES_TYPES)
        if self._missing:
            try:
                self._connect().close()
            except psycopg.errors.InsufficientPrivilege as error:
                raise made_earlier(self.url) from error

    @property
    def _patience_seconds(self) -> float:
        return _LOOKING_SECONDS

    def _connect(self) -> psycopg.Connection[Any]:
        connection = super()._connect()
        try:
            for statement in self._missing:
                connection.execute(statement.encode())
            connection.execute("SET default_transaction_read_only = on")
            connection.execute(f"SET statement_timeout = '{_QUERY_SECONDS}s'".encode())
        except BaseException:
            connection.close()
            raise
        return connection

    def doubt_all(self) -> None:
        self.readers.forget()

    def change_mark(self) -> Hashable:
        """Snapshot of the server's transactions. It differs after every commit, including commits
        to other databases of the server.
        """
        return self.read_once(
            lambda cursor: cursor.execute("SELECT pg_current_snapshot()::text").fetchone()
        )

    @contextmanager
    def _begun(self, *, goes_on: bool) -> Generator[ReadTransaction]:
        outer: ReadTransaction | None = getattr(self._within, "reading", None)
        if outer is not None:
            yield ReadTransaction(outer.ask)
            return
        with super()._begun(goes_on=goes_on) as reading:
            self._within.reading = reading
            try:
                yield reading
            finally:
                self._within.reading = None

    def _close(self) -> None:
        self.readers.close()


def _words(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _is_final(error: Exception) -> bool:
    """True for an error that waiting does not fix: a wrong password or name, a full disk."""
    return isinstance(
        error,
        psycopg.errors.InvalidPassword
        | psycopg.errors.InvalidAuthorizationSpecification
        | psycopg.errors.InvalidCatalogName
        | psycopg.errors.DiskFull,
    )


def _without_password(url: str) -> str:
    try:
        named = conninfo_to_dict(url)
    except psycopg.Error as error:
        why = str(error).partition('"')[0].strip(" :\n")  # the quoted part may be the password
        raise StoreError(
            f"The URL of the store is not a PostgreSQL URL: {why}.",
            "Write postgresql://USER@HOST/NAME.",
        ) from None
    place = (
        f"{named.get('host') or 'localhost'}:{named['port']}"
        if named.get("port")
        else str(named.get("host") or "")
    )
    user = f"{named['user']}@" if named.get("user") else ""
    return f"postgresql://{user}{place}/{named.get('dbname') or ''}"
