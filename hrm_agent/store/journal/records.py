"""Tables of sealed records: the kinds of record of a store's journal, and how each is stored.

A record is sealed for its place, which is the word of its kind and its key. So a row that was moved
or exchanged in an encrypted store is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel

from hrm_agent.errors import StoreError
from hrm_agent.store.database.cursors import Cursor, placeholders
from hrm_agent.store.database.database import Database
from hrm_agent.store.values.cipher import Cipher
from hrm_agent.store.values.damage import OnDamage, reading
from hrm_agent.store.values.packed_records import plain_record
from hrm_agent.trajectory import Call, Overlay, Scoring, TaskDraws, ToolCall, Trajectory

if TYPE_CHECKING:
    from hrm_agent.store.values.requests import RequestStore

__all__ = [
    "CALLS",
    "DRAWS",
    "HEADERS",
    "OPTIONS",
    "OVERLAYS",
    "SCORINGS",
    "TOOL_CALLS",
    "JournalTables",
    "RecordKind",
    "RecordTable",
    "in_batches",
]

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class RecordKind(Generic[R]):
    """Kind of record, with a table of its own."""

    table: str
    """Name of the table."""
    word: str
    """First part of the place for which a record is sealed."""
    key: tuple[str, ...]
    """Columns that are unique together, and the rest of the place."""
    named: tuple[str, str]
    """Noun of the kind, and a template of a record's name from its key, for errors."""
    load: Callable[[bytes], R]
    """Reads a record. Raises `ValueError` for an invalid one."""
    dump: Callable[[R], bytes]
    """Returns the stored form of a record, before encryption."""
    order: str = "seq"
    """Columns by which records are read in order."""

    def sealed(self, cipher: Cipher, record: R, *key: Any) -> bytes:
        return cipher.seal(self.dump(record), self.word, *map(str, key))

    def opened(self, cipher: Cipher, key: Sequence[Any], sealed: bytes) -> R:
        """Record of a row. Raises `StoreError` for a damaged one."""
        what, name = self.named
        with reading(what, name.format(*key)):
            return self.load(plain_record(cipher.open(sealed, self.word, *map(str, key))))

    def rows(
        self, cipher: Cipher, rows: Iterable[Sequence[Any]], on_damage: OnDamage | None = None
    ) -> Iterator[tuple[Sequence[Any], R]]:
        """Rows with their records. A row is the key, the sealed record and any other columns.

        `on_damage` is called for a damaged record, which is left out. By default `StoreError` is
        raised.
        """
        size = len(self.key)
        for row in rows:
            try:
                record = self.opened(cipher, row[:size], row[size])
            except StoreError as error:
                if on_damage is None:
                    raise
                on_damage(str(row[size - 1]), error)
                continue
            yield row, record


class RecordTable(Generic[R]):
    """Records of one kind in a store."""

    def __init__(self, kind: RecordKind[R], database: Database, cipher: Cipher) -> None:
        self.kind = kind
        self._database = database
        self._cipher = cipher

    def row(self, record: R, *key: Any, **columns: Any) -> tuple[str, tuple[Any, ...]]:
        """Statement that writes a record, and its values. It replaces one of the same key.

        `columns`: values of the table's other columns.
        """
        values = {**columns, "record": self.kind.sealed(self._cipher, record, *key)}
        names = ", ".join((*self.kind.key, *values))
        marks = placeholders(len(key) + len(values))
        replaced = ", ".join(f"{name} = excluded.{name}" for name in values)
        statement = (
            f"INSERT INTO {self.kind.table} ({names}) VALUES ({marks}) ON CONFLICT"
            f" ({', '.join(self.kind.key)}) DO UPDATE SET {replaced}"
        )
        return statement, (*key, *values.values())

    def insert(self, cursor: Cursor, record: R, *key: Any) -> None:
        """Write a record as part of a transaction. It replaces one of the same key."""
        cursor.execute(*self.row(record, *key))

    def read(self, where: str, values: Sequence[Any], on_damage: OnDamage | None = None) -> list[R]:
        """Records of the rows that match. For `on_damage` see `RecordKind.rows`."""
        with self._database.read() as cursor:
            rows = self.query(cursor, where, values)
        return [record for _, record in self.kind.rows(self._cipher, rows, on_damage)]

    def query(self, cursor: Cursor, where: str, values: Sequence[Any]) -> list[Any]:
        columns = ", ".join((*self.kind.key, "record"))
        order = f"ORDER BY {self.kind.order}"
        return cursor.execute(
            f"SELECT {columns} FROM {self.kind.table} WHERE {where} {order}", values
        ).fetchall()


def _dumped(record: BaseModel) -> bytes:
    return record.model_dump_json().encode()


def _dumped_overlay(overlay: Overlay) -> bytes:
    # Unset fields are left out: an earlier version refuses a field that it does not know.
    names = ("carried_from", "credit", "penalty_by_role")
    silent = {name for name in names if getattr(overlay, name) is None}
    return overlay.model_dump_json(exclude=silent).encode()


def _dumped_header(trajectory: Trajectory) -> bytes:
    return trajectory.model_dump_json(exclude={"calls", "tool_calls", "failed_calls"}).encode()


def _dumped_call(call: Call) -> bytes:
    # These fields have rows of their own. Older stores keep the request in the record.
    apart = {"token_ids", "mask", "logprobs", "request", "tools"}
    return call.model_dump_json(exclude=apart).encode()


HEADERS = RecordKind(
    "trajectories",
    "trajectory",
    ("id",),
    ("trajectory", "{0}"),
    Trajectory.model_validate_json,
    _dumped_header,
)
"""Trajectories without their calls."""
CALLS = RecordKind(
    "calls", "call", ("id",), ("model call", "{0}"), Call.model_validate_json, _dumped_call
)
"""Model calls without their tokens and requests."""
TOOL_CALLS = RecordKind(
    "tool_calls", "tool", ("id",), ("tool call", "{0}"), ToolCall.model_validate_json, _dumped
)
DRAWS = RecordKind(
    "draws",
    "draws",
    ("thread_id", "task_id", "attempt"),
    ("draws of task", "{1}"),
    TaskDraws.model_validate_json,
    _dumped,
    order="thread_id, task_id, attempt",
)
OVERLAYS = RecordKind(
    "overlays",
    "overlay",
    ("run_id", "trajectory_id"),
    ("judgement", "{0} of {1}"),
    Overlay.model_validate_json,
    _dumped_overlay,
    order="step, seq",
)
SCORINGS = RecordKind(
    "scorings",
    "scoring",
    ("rubric", "trajectory_id"),
    ("scoring", "of {1} by {0}"),
    Scoring.model_validate_json,
    _dumped,
)
OPTIONS = RecordKind(
    "options",
    "options",
    ("thread_id",),
    ("row of options of thread", "{0!r}"),
    bytes.decode,
    str.encode,
    order="thread_id",
)


class JournalTables:
    """Tables of a store's journal."""

    def __init__(
        self, database: Database, cipher: Cipher, requests: Callable[[], RequestStore]
    ) -> None:
        """`requests` imports LangGraph. It is called only to write a request, or to read unusual
        messages.
        """
        self._database = database
        self._cipher = cipher
        self._requests = requests
        self._headers = RecordTable(HEADERS, database, cipher)
        self._tool_call_rows = RecordTable(TOOL_CALLS, database, cipher)
        self._draws = RecordTable(DRAWS, database, cipher)
        self._overlays = RecordTable(OVERLAYS, database, cipher)
        self.is_blocking = database.is_blocking
        """True if a write waits for a disk or a server. An event loop then hands it to a thread."""

    def _rows(self, query: str, values: Sequence[Any]) -> list[Any]:
        with self._database.read() as cursor:
            return cursor.execute(query, values).fetchall()


def in_batches(
    ids: Sequence[str], steps_of: str | None, table: str = ""
) -> Iterator[tuple[str, list[str]]]:
    """WHERE clauses with their values, for calls by their ids, or by the ids of their steps on the
    thread `steps_of`. `table` is the prefix of the columns.
    """
    for start in range(0, len(ids), 500):
        some = ids[start : start + 500]
        marks = placeholders(len(some))
        if steps_of is None:
            yield f"{table}id IN ({marks})", [*some]
        else:
            where = f"{table}checkpoint_id IN ({marks}) AND {table}thread_id = ?"
            yield where, [*some, steps_of]
