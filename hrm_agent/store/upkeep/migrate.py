"""Into a store of this version: from version 1, and from the databases of LangGraph's own savers.

The source is read, never written to; LangGraph's tables are read by LangGraph's savers, which have
to be installed for that. Deserialisation is as strict as ever: a type of one's own in a state has
to be allowed by name.

What LangGraph's savers did not keep is not invented: a thread of theirs has checkpoints and writes,
and no trajectory.
"""

from __future__ import annotations

import json
import sqlite3
from array import array
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from hrm_agent.errors import StoreError
from hrm_agent.store.journal import options_in
from hrm_agent.store.run_store import RunStore, file_of
from hrm_agent.store.values.refusals import RefusedValue
from hrm_agent.store.values.serializer import StrictSerializer, allowed_types
from hrm_agent.trajectory import Call, Overlay, ToolCall, Trajectory

__all__ = ["Migrated", "check_source", "migrate"]


@dataclass(frozen=True, slots=True)
class Migrated:
    """What was taken over."""

    threads: int
    """Number of threads."""
    checkpoints: int
    """Number of checkpoints, those of subgraphs included."""
    trajectories: int
    """Number of trajectories; 0 from a saver of LangGraph's."""


def migrate(source: str, target: RunStore, allow: Sequence[str] = ()) -> Migrated:
    """Copy `source` (a SQLite file or a PostgreSQL URL) into `target`, in one transaction.

    Doing it again changes nothing. Raises `StoreError` naming what cannot be read.
    """
    with _opened(source, StrictSerializer(allowed_types(allow))) as stock, target.database.whole():
        threads, checkpoints = _checkpoints(stock, target)
        return Migrated(
            threads,
            checkpoints,
            _journal(stock.query, target, stock.folder) if stock.journal else 0,
        )


def check_source(source: str) -> None:
    """Raises `StoreError` for what cannot be migrated, before there is a target."""
    with _opened(source, StrictSerializer()):
        pass


def _opened(source: str, serializer: StrictSerializer) -> AbstractContextManager[_Stock]:
    if source.startswith(("postgresql://", "postgres://")):
        return _postgres(source, serializer)
    return _sqlite(file_of(source) or Path(source), serializer)


Query = Callable[[str, Sequence[Any]], list[Any]]


@dataclass(frozen=True, slots=True)
class _Stock:
    """An opened database of one of LangGraph's savers."""

    saver: BaseCheckpointSaver[Any]
    """Reads its checkpoints."""
    query: Query
    """Runs a statement on it; returns the rows."""
    writes: str
    """Its table of pending writes."""
    journal: bool = False
    """A store of version 1, which has a journal besides."""
    folder: Path = Path()
    """Of such a store: options of its threads lie there."""


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
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if "checkpoints" not in tables or ("meta" in tables and version > 1):
                raise StoreError(
                    f"{path} has nothing to migrate.",
                    "It has this version already, or is of another program.",
                )
            saver = SqliteSaver(connection, serde=serializer)
            saver.is_setup = True  # what its set-up changes, a reader does not need

            def query(text: str, values: Sequence[Any]) -> list[Any]:
                return connection.execute(text, values).fetchall()

            yield _Stock(saver, query, "writes", "trajectories" in tables, path.parent)
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


def _checkpoints(stock: _Stock, target: RunStore) -> tuple[int, int]:
    """Threads and checkpoints that were taken over."""
    count = 0
    threads = [
        str(row[0])
        for row in stock.query("SELECT DISTINCT thread_id FROM checkpoints ORDER BY 1", ())
    ]
    for thread_id in threads:
        # Where each task stood in its step: LangGraph orders what parallel tasks wrote by it.
        query = f"SELECT task_id, task_path FROM {stock.writes} WHERE thread_id = ?"
        paths = dict(stock.query(query, (thread_id,)))
        found = sorted(_read(stock.saver, thread_id), key=lambda c: c.checkpoint["id"])
        for checkpoint in found:
            target.checkpointer.adopt(checkpoint, paths)
        count += len(found)
    return len(threads), count


def _read(saver: BaseCheckpointSaver[Any], thread_id: str) -> Iterable[CheckpointTuple]:
    try:
        return list(saver.list({"configurable": {"thread_id": thread_id}}))
    except (RefusedValue, ValueError, TypeError, KeyError) as error:
        raise StoreError(
            f"Thread {thread_id!r} cannot be read: {error}.",
            "A type of one's own in a state is allowed by name: --allow package.module:Class.",
        ) from error


def _journal(query: Query, target: RunStore, folder: Path) -> int:
    """The journal of a version 1 store, and the options that are kept beside it."""
    journal = target.journal
    for (record,) in query("SELECT record FROM trajectories ORDER BY rowid", ()):
        header: dict[str, Any] = json.loads(record)
        trajectory = Trajectory.model_validate({**header, "schema_version": 2})
        journal.write_trajectory(trajectory)
        if (text := options_in(folder, trajectory.id)) is not None:
            target.options.write(trajectory.thread_id, text)
    columns = (
        "c.record, t.token_ids, t.mask, t.logprobs FROM calls c JOIN tokens t ON t.call_id = c.id"
    )
    for record, token_ids, mask, logprobs in query(f"SELECT {columns} ORDER BY c.seq", ()):
        tokens = {
            "token_ids": tuple(array("i", token_ids)),
            "mask": tuple(flag == 1 for flag in mask),
            "logprobs": tuple(array("f", logprobs)),
        }
        journal.write_call(Call.model_validate_json(record).model_copy(update=tokens))
    for (record,) in query("SELECT record FROM tool_calls ORDER BY seq", ()):
        journal.write_tool_call(ToolCall.model_validate_json(record))
    overlays = [
        Overlay.model_validate_json(record)
        for (record,) in query("SELECT record FROM overlays", ())
    ]
    journal.write_overlays(overlays)
    return len(query("SELECT 1 FROM trajectories", ()))
