"""Ways to keep LangGraph's checkpoints, each with the durability of its commits.

`process`: a commit survives the death of the process, but a power failure can lose the newest.
`power`: a commit survives a power failure, too, and waits for the disk. Stock savers do not
document their durability: it is `power`, the default of SQLite (`synchronous=FULL`) and of
PostgreSQL. A place is a separate file or database for each measurement.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
    contextmanager,
)
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from hrm_agent.store import open_store
from tests.support.postgres import PostgresServer

__all__ = ["FLOORS", "NOTHING", "WAYS", "Floor", "Places", "Way"]

Saver = BaseCheckpointSaver[Any]
Opener = Callable[[str], AbstractContextManager[Saver]]
AsyncOpener = Callable[[str], AbstractAsyncContextManager[Saver]]
Row = tuple[Any, ...]


class Places:
    """Files in one folder, databases in one server."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        self._folder, self._server, self._numbers = folder, server, count()

    def new(self, body: str) -> str:
        if body == "postgresql":
            return self._server.create_database()
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        return str(folder / "store.db")

    @staticmethod
    def size(place: str) -> int:
        """Bytes of all files, or of all tables with their indexes."""
        if place.startswith("postgresql"):
            query = (
                "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND"
                " relnamespace = %s"
            )
            with psycopg.connect(place) as connection:
                return int((connection.execute(query, (_PUBLIC,)).fetchone() or (0,))[0])
        return sum(path.stat().st_size for path in Path(place).parent.glob(f"{Path(place).name}*"))


_PUBLIC = 2200
"""Object id of the schema `public` in every database."""


@dataclass(frozen=True)
class Way:
    """Checkpointer, opened as in its documentation."""

    name: str
    survives: str
    body: str
    opened: Opener | None
    opened_async: AsyncOpener
    ours: bool = False


@contextmanager
def _sqlite(place: str, *pragmas: str) -> Generator[Saver]:
    with closing(sqlite3.connect(place, check_same_thread=False)) as connection:
        saver = SqliteSaver(connection)
        saver.setup()
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")
        yield saver


@asynccontextmanager
async def _sqlite_async(place: str) -> AsyncGenerator[Saver]:
    async with AsyncSqliteSaver.from_conn_string(place) as saver:
        yield saver


@contextmanager
def _postgres(place: str) -> Generator[Saver]:
    with PostgresSaver.from_conn_string(place) as saver:
        saver.setup()
        yield saver


@asynccontextmanager
async def _postgres_async(place: str) -> AsyncGenerator[Saver]:
    async with AsyncPostgresSaver.from_conn_string(place) as saver:
        await saver.setup()
        yield saver


@contextmanager
def _ours(place: str, level: str = "") -> Generator[Saver]:
    with open_store(f"sqlite:///{place}?level={level}" if level else place) as store:
        yield store.checkpointer


class _Nothing(BaseCheckpointSaver[Any]):
    """Checkpointer that keeps nothing. It shows what LangGraph itself spends on any
    checkpointer.
    """

    def get_tuple(self, config: Any) -> None:
        return None

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        named = config["configurable"]
        return {"configurable": {**named, "checkpoint_id": checkpoint["id"]}}

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        pass


@contextmanager
def _nothing(_: str) -> Generator[Saver]:
    yield _Nothing()


def _in_loop(opened: Opener) -> AsyncOpener:
    """Opener for async graphs, made from an opener of a checkpointer that serves sync and async
    graphs.
    """

    @asynccontextmanager
    async def opened_async(place: str) -> AsyncGenerator[Saver]:
        with opened(place) as saver:
            yield saver

    return opened_async


def _our_way(name: str, survives: str, body: str, opened: Opener) -> Way:
    return Way(name, survives, body, opened, _in_loop(opened), ours=True)


WAYS = {
    way.name: way
    for way in (
        _our_way("ours", "process", "sqlite", _ours),
        _our_way("ours, power", "power", "sqlite", lambda place: _ours(place, "power")),
        Way(
            "SqliteSaver NORMAL",
            "process",
            "sqlite",
            lambda place: _sqlite(place, "synchronous=NORMAL"),
            _sqlite_async,
        ),
        Way("SqliteSaver", "power", "sqlite", _sqlite, _sqlite_async),
        Way("AsyncSqliteSaver", "power", "sqlite", None, _sqlite_async),
        _our_way("ours, PostgreSQL", "power", "postgresql", _ours),
        Way("PostgresSaver", "power", "postgresql", _postgres, _postgres_async),
    )
}


NOTHING = Way("a saver that keeps nothing", "", "sqlite", _nothing, _in_loop(_nothing))
"""Floor of any checkpointer in a graph."""


@dataclass(frozen=True)
class Floor:
    """Bare inserts of the rows that our store wrote, into tables without an index, in as many
    commits.
    """

    name: str
    survives: str
    body: str

    def write(self, place: str, tables: dict[str, list[Row]], commits: int) -> None:
        if self.body == "postgresql":
            self._write_postgres(place, tables, commits)
        else:
            self._write_sqlite(place, tables, commits)

    def _write_sqlite(self, place: str, tables: dict[str, list[Row]], commits: int) -> None:
        with closing(sqlite3.connect(place, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(
                f"PRAGMA synchronous={'FULL' if self.survives == 'power' else 'NORMAL'}"
            )
            for name, rows in tables.items():
                connection.execute(
                    f"CREATE TABLE {name} ({', '.join(f'c{i}' for i in range(len(rows[0])))})"
                )
            for shares in _shares(tables, commits):
                connection.execute("BEGIN")
                for name, rows in shares:
                    connection.executemany(
                        f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})", rows
                    )
                connection.execute("COMMIT")

    def _write_postgres(self, place: str, tables: dict[str, list[Row]], commits: int) -> None:
        types = {bytes: "BYTEA", int: "BIGINT", float: "DOUBLE PRECISION"}
        with psycopg.connect(place, autocommit=True) as connection:
            for name, rows in tables.items():
                columns = (
                    f"c{i} {types.get(type(field), 'TEXT')}" for i, field in enumerate(rows[0])
                )
                connection.execute(f"CREATE TABLE {name} ({', '.join(columns)})".encode())
            for shares in _shares(tables, commits):
                with connection.pipeline(), connection.transaction(), connection.cursor() as cursor:
                    for name, rows in shares:
                        query = f"INSERT INTO {name} VALUES ({', '.join(['%s'] * len(rows[0]))})"
                        cursor.executemany(query.encode(), rows)


FLOORS = (
    Floor("bare inserts", "process", "sqlite"),
    Floor("bare inserts, power", "power", "sqlite"),
    Floor("bare inserts, PostgreSQL", "power", "postgresql"),
)


def _shares(
    tables: dict[str, list[Row]], commits: int
) -> Iterable[Sequence[tuple[str, list[Row]]]]:
    """Rows of each table, spread evenly over the commits."""
    for i in range(commits):
        shares = [
            (name, rows[i * len(rows) // commits : (i + 1) * len(rows) // commits])
            for name, rows in tables.items()
        ]
        yield [(name, rows) for name, rows in shares if rows]
