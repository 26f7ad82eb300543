"""Reading a PostgreSQL store: transactions that see one moment, and a server that is away for a while.

A store that is opened for reading only has no connection that writes, and its server refuses what would
(`default_transaction_read_only`).
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from hrm_agent.errors import StoreError, StoreFullError, StoreVersionError, to_install
from hrm_agent.store.cursors import Cursor
from hrm_agent.store.database import Database
from hrm_agent.store.read_only import ReadOnlyDatabase, made_earlier
from hrm_agent.store.tables import STORE_VERSION, table_names

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    from hrm_agent.store.postgres_cursors import ReadTransaction
    from hrm_agent.store.postgres_tables import is_complete, stored_version
    from hrm_agent.store.readers import Readers
except ImportError as error:
    raise StoreError(
        "A PostgreSQL store needs psycopg, which is not installed.", f"Run `{to_install('postgres')}`."
    ) from error

__all__ = ["LOST", "PostgresReading", "ReadOnlyPostgres"]

T = TypeVar("T")
_READERS = 4
_PATIENCE_SECONDS = 60.0
"""How long a server that is gone is waited for."""
_LOOKING_SECONDS = 1.0
"""How long by who only looks."""
_ANSWER_SECONDS = 10.0
"""How long one attempt to reach it may take."""
_QUERY_SECONDS = 30
"""How long one query of who only looks may take."""
LOST = (psycopg.OperationalError, psycopg.InterfaceError)
"""Errors of a connection that is lost."""


class PostgresReading(Database):
    """A PostgreSQL database with this project's tables in its search path, as it is read."""

    is_blocking = True
    level = "power"

    def __init__(self, url: str) -> None:
        super().__init__()
        self._conninfo = url
        self.url, self.folder = _without_password(url), Path("runs")
        self._readers = Readers(self._connect, _READERS, _ANSWER_SECONDS)
        self._given_up = False

    @property
    def _patience_seconds(self) -> float:
        return _PATIENCE_SECONDS

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._conninfo, connect_timeout=int(_ANSWER_SECONDS), autocommit=True)

    @abstractmethod
    def _doubt_all(self) -> None:
        """One connection was lost: all may be."""

    def _refuse_newer(self, version: int) -> None:
        if version > STORE_VERSION:
            raise StoreVersionError(
                f"The store {self.url} has schema version {version}; versions up to {STORE_VERSION} are known here.",
                "Nothing was changed. Update with `pip install --upgrade hrm-agent`, or name another store.",
            )

    def _patiently(self, attempt: Callable[[], T]) -> T:
        """The result of `attempt`, made again while the server is away. Raises `StoreError` after a minute.

        Whoever still asks after that minute finds out at once whether the server is back: a run that ends for want of
        its store has much to close.
        """
        deadline = time.monotonic() + (0 if self._given_up else self._patience_seconds)
        while True:
            try:
                result = attempt()
                self._given_up = False
                return result
            except LOST as error:
                self._doubt_all()
                if _is_final(error):
                    raise self.store_error(error) from error
                if self._given_up or time.monotonic() >= deadline:
                    self._given_up = True
                    raise self._gone(error) from error
                time.sleep(0.1)
            except psycopg.Error as error:
                raise self.store_error(error) from error

    def read_once(self, reading: Callable[[Cursor], T]) -> T:
        self._refuse_unusable()
        self.flush()

        def attempt() -> T:
            with self._begun() as cursor:
                return reading(cursor)

        return self._patiently(attempt)

    @contextmanager
    def _read(self) -> Generator[Cursor]:
        try:
            with self._begun() as cursor:
                yield cursor
        except psycopg.Error as error:
            raise self.store_error(error) from error

    @contextmanager
    def _begun(self) -> Generator[Cursor]:
        reading = ReadTransaction(lambda query, values: self._patiently(lambda: self._begin(query, values)))
        try:
            yield reading
        finally:
            if reading.cursor is not None:
                with suppress(psycopg.Error):
                    reading.cursor.connection.execute("ROLLBACK")
                self._readers.give(reading.cursor.connection)

    def _begin(self, query: bytes, values: Sequence[Any]) -> psycopg.Cursor[Any]:
        """The first statement of a transaction that sees one moment, on a connection that nobody else has."""
        connection = self._readers.take()
        try:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return connection.cursor().execute(query, values)
        except BaseException:
            self._readers.give(connection)
            raise

    def size(self) -> int:
        query = "SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class WHERE relkind = 'r' AND relname IN "
        names = table_names()
        with self.read() as cursor:
            found = cursor.execute(f"{query} ({', '.join('?' * len(names))})", names).fetchone()
        return int(found[0])

    def problems(self) -> list[str]:
        return []  # PostgreSQL checks its pages itself (data_checksums, pg_amcheck)

    def _gone(self, error: Exception) -> StoreError:
        return StoreError(
            f"The server of {self.url} has been unreachable for over {self._patience_seconds:.0f} seconds: "
            f"{_words(error)}.",
            "What was committed is intact: start the server, then `hrm-agent resume` the run.",
        )

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


class ReadOnlyPostgres(ReadOnlyDatabase, PostgresReading):
    """One that is looked at. A read inside a read of the same thread is of the same moment."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._within = threading.local()

        def look(cursor: psycopg.Cursor[Any]) -> tuple[int | None, bool]:
            version = stored_version(cursor)
            return version, version is not None and is_complete(cursor, to_write=False)

        try:
            with self._connect() as connection:
                version, complete = look(connection.cursor())
        except psycopg.Error as error:
            raise self.store_error(error) from error
        if version is None:
            raise StoreError(f"There is no store at {self.url}.", "`hrm-agent run TASK` makes one.")
        self._refuse_newer(version)
        if version < STORE_VERSION or not complete:
            raise made_earlier(self.url)

    @property
    def _patience_seconds(self) -> float:
        return _LOOKING_SECONDS

    def _connect(self) -> psycopg.Connection[Any]:
        connection = super()._connect()
        try:
            connection.execute("SET default_transaction_read_only = on")
            connection.execute(f"SET statement_timeout = '{_QUERY_SECONDS}s'".encode())
        except BaseException:
            connection.close()
            raise
        return connection

    def _doubt_all(self) -> None:
        self._readers.forget()

    def change_mark(self) -> Hashable:
        """The server's transactions: it changes with every commit, also one to another database of the server."""
        return self.read_once(lambda cursor: cursor.execute("SELECT pg_current_snapshot()::text").fetchone())

    @contextmanager
    def _begun(self) -> Generator[Cursor]:
        outer: ReadTransaction | None = getattr(self._within, "reading", None)
        if outer is not None:
            yield ReadTransaction(outer.beside)
            return
        with super()._begun() as reading:
            self._within.reading = reading
            try:
                yield reading
            finally:
                self._within.reading = None

    def _close(self) -> None:
        self._readers.close()


def _words(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _is_final(error: Exception) -> bool:
    """True for what waiting does not mend: a wrong password or name, a full disk."""
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
        why = str(error).partition('"')[0].strip(" :\n")  # what is quoted may be the password
        raise StoreError(
            f"The URL of the store is not a PostgreSQL URL: {why}.", "postgresql://USER@HOST/NAME"
        ) from None
    place = f"{named.get('host') or 'localhost'}:{named['port']}" if named.get("port") else str(named.get("host") or "")
    user = f"{named['user']}@" if named.get("user") else ""
    return f"postgresql://{user}{place}/{named.get('dbname') or ''}"
