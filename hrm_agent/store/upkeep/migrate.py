"""Migration of the threads of LangGraph's own savers into a store.

LangGraph's savers, which must be installed, read the source. It is never written to.
Deserialisation is as strict as usual: custom types in a state must be allowed by name.

Data that LangGraph's savers did not keep is not invented: their threads have checkpoints and
writes, but no trajectory.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from hrm_agent.errors import StoreError
from hrm_agent.store.run_store import RunStore, file_of
from hrm_agent.store.values.refusals import RefusedValue
from hrm_agent.store.values.serializer import StrictSerializer, allowed_types

__all__ = ["Migrated", "check_source", "migrate"]


@dataclass(frozen=True, slots=True)
class Migrated:
    """Numbers of migrated items."""

    threads: int
    """Number of threads."""
    checkpoints: int
    """Number of checkpoints, including those of subgraphs."""


def migrate(source: str, target: RunStore, allow: Sequence[str] = ()) -> Migrated:
    """Copy `source` (a SQLite file or a PostgreSQL URL) into `target`, in one transaction.

    Repeating it changes nothing. Raises `StoreError` that names the unreadable part.
    """
    with _opened(source, StrictSerializer(allowed_types(allow))) as stock, target.database.whole():
        count = 0
        threads = [
            str(row[0])
            for row in stock.query("SELECT DISTINCT thread_id FROM checkpoints ORDER BY 1", ())
        ]
        for thread_id in threads:
            # Path of each task in its step, by which LangGraph orders the writes of parallel tasks.
            query = f"SELECT task_id, task_path FROM {stock.writes} WHERE thread_id = ?"
            paths = dict(stock.query(query, (thread_id,)))
            found = sorted(_read(stock.saver, thread_id), key=lambda c: c.checkpoint["id"])
            for checkpoint in found:
                target.checkpointer.adopt(checkpoint, paths)
            count += len(found)
        return Migrated(len(threads), count)


def check_source(source: str) -> None:
    """Raise `StoreError` for a source that cannot be migrated, before a target is created."""
    with _opened(source, StrictSerializer()):
        pass


def _opened(source: str, serializer: StrictSerializer) -> AbstractContextManager[_Stock]:
    if source.startswith(("postgresql://", "postgres://")):
        return _postgres(source, serializer)
    return _sqlite(file_of(source) or Path(source), serializer)


Query = Callable[[str, Sequence[Any]], list[Any]]


@dataclass(frozen=True, slots=True)
class _Stock:
    """Opened database of one of LangGraph's savers."""

    saver: BaseCheckpointSaver[Any]
    """Saver that reads its checkpoints."""
    query: Query
    """Function that runs a statement on it and returns the rows."""
    writes: str
    """Name of its table of pending writes."""


@contextmanager
def _sqlite(path: Path, serializer: StrictSerializer) -> Generator[_Stock]:
    try:
        from langgraph.checkpoint.sqlite import SqliteSaver
    except ImportError as error:
        hint = "Run `pip install langgraph-checkpoint-sqlite`."
        raise StoreError(
            "Reading a SqliteSaver's database needs LangGraph's SqliteSaver.", hint
        ) from error
    if not path.is_file():
        raise StoreError(f"There is no file {path}.", "Name a SQLite file or a PostgreSQL URL.")
    if path.stat().st_size == 0:
        raise StoreError(f"{path} is empty: nothing was ever stored in it.", "Name another file.")
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, check_same_thread=False)) as connection:
            tables = {
                name
                for (name,) in connection.execute(
                    "SELECT name FROM sqlite_master WHERE type = 'table'"
                )
            }
            if "checkpoints" not in tables or not tables.isdisjoint(("meta", "trajectories")):
                raise StoreError(
                    f"{path} has nothing to migrate.",
                    "It is a run store already, or is of another program.",
                )
            saver = SqliteSaver(connection, serde=serializer)
            saver.is_setup = True  # its set-up changes are not needed for reading

            def query(text: str, values: Sequence[Any]) -> list[Any]:
                return connection.execute(text, values).fetchall()

            yield _Stock(saver, query, "writes")
    except sqlite3.Error as error:
        raise StoreError(
            f"{path} cannot be read: {error}.", "Name a SQLite file that a saver or a store wrote."
        ) from error


@contextmanager
def _postgres(url: str, serializer: StrictSerializer) -> Generator[_Stock]:
    try:
        import psycopg
        from langgraph.checkpoint.postgres import PostgresSaver
        from psycopg.rows import dict_row
    except ImportError as error:
        hint = "Run `pip install langgraph-checkpoint-postgres 'psycopg[binary]'`."
        raise StoreError(
            "Reading a PostgresSaver's database needs LangGraph's PostgresSaver.", hint
        ) from error
    try:
        rows: Any = dict_row
        with (
            psycopg.connect(url, autocommit=True, row_factory=rows) as opened,
            psycopg.connect(url, autocommit=True) as plain,
        ):
            connection: Any = opened

            def query(text: str, values: Sequence[Any]) -> list[Any]:
                return plain.execute(text.replace("?", "%s").encode(), values).fetchall()

            yield _Stock(PostgresSaver(connection, serde=serializer), query, "checkpoint_writes")
    except psycopg.Error as error:
        text = " ".join(str(error).split())
        raise StoreError(
            f"The database cannot be read: {text}.", "Check the server and the URL."
        ) from error


def _read(saver: BaseCheckpointSaver[Any], thread_id: str) -> Iterable[CheckpointTuple]:
    try:
        return list(saver.list({"configurable": {"thread_id": thread_id}}))
    except (RefusedValue, ValueError, TypeError, KeyError) as error:
        raise StoreError(
            f"Thread {thread_id!r} cannot be read: {error}.",
            "Allow each type of your own in a state by name: --allow package.module:Class.",
        ) from error
