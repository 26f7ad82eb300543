"""Copying of a store into another database, under another key, or both.

Names of values depend on the key, and nodes contain names. So values are copied leaves first, and
references are rewritten. With equal keys the names stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import ormsgpack

from hrm_agent.errors import StoreError
from hrm_agent.store.checkpoints.reader import read_manifest
from hrm_agent.store.database.cursors import Cursor
from hrm_agent.store.run_store import RunStore
from hrm_agent.store.values.cipher import Cipher
from hrm_agent.store.values.damage import DAMAGED
from hrm_agent.store.values.refusals import RefusedValue
from hrm_agent.store.values.sent_requests import read_request
from hrm_agent.store.values.value_reader import DICT, LIST, hash_of, references
from hrm_agent.trajectory import ToolCall

__all__ = ["copy_store"]

_AT_ONCE = 500
_LIST_DAMAGE = "`hrm-agent store verify` lists what is damaged: delete those threads first."
_SEALED = {
    "trajectories": (
        "id, run_id, group_id, thread_id, status, started_at, origin, record",
        {"record": ("trajectory", "id")},
    ),
    "tokens": (
        "call_id, token_ids, mask, logprobs",
        {
            "token_ids": ("tokens", "call_id"),
            "mask": ("mask", "call_id"),
            "logprobs": ("logprobs", "call_id"),
        },
    ),
    "calls": (
        "id, thread_id, task_id, checkpoint_id, parent, seed, record",
        {"record": ("call", "id")},
    ),
    "draws": (
        "thread_id, task_id, attempt, record",
        {"record": ("draws", "thread_id", "task_id", "attempt")},
    ),
    "overlays": (
        "run_id, step, trajectory_id, record",
        {"record": ("overlay", "run_id", "trajectory_id")},
    ),
    "scorings": (
        "rubric, trajectory_id, record",
        {"record": ("scoring", "rubric", "trajectory_id")},
    ),
    "threads": ("id, trajectory_id, run_id, group_id, status, created_at, updated_at", {}),
    "options": ("thread_id, record", {"record": ("options", "thread_id")}),
}
"""Table -> its columns, and for each sealed column the place for which it is sealed: a word, then the
columns that identify the row.
"""
_ORDERS = {
    "threads": "id",
    "tokens": "call_id",
    "options": "thread_id",
    "draws": "thread_id, task_id, attempt",
}
"""Orders of tables without a `seq`."""


def copy_store(source: RunStore, target: RunStore) -> dict[str, int]:
    """Copy all rows of `source` into the empty store `target`. Returns the number of rows by table.

    One transaction is used, so a failed copy leaves nothing. Raises `StoreError` if `target` is not
    empty.
    """
    with source.database.read() as cursor:
        # read here, as the target may do the work in another thread
        tool_calls = source.journal.tool_calls()

        def work(into: Cursor) -> dict[str, int]:
            held = " UNION ALL ".join(
                f"SELECT 1 FROM {table}" for table in (*_SEALED, "tool_calls", "checkpoints")
            )
            if into.execute(f"{held} LIMIT 1").fetchone():
                raise StoreError(f"{target.url} is not empty.", "Copy into a new store.")
            try:
                reading = partial(source.database.rows, cursor)
                return _Copy(reading, source.cipher, into, target.cipher).all(
                    source, target, tool_calls
                )
            except (RefusedValue, *DAMAGED) as error:
                raise StoreError(
                    f"A row of {source.url} cannot be read: {error}. Nothing was copied.",
                    _LIST_DAMAGE,
                ) from error

        return target.database.exclusive(work)


class _Copy:
    def __init__(
        self, source: Callable[..., list[Any]], opening: Cipher, target: Cursor, sealing: Cipher
    ) -> None:
        """`source` returns the rows of a query."""
        self._source = source
        self._opening = opening
        self._target = target
        self._sealing = sealing
        self._names: dict[bytes, bytes] = {}
        """Names in the target of copied values, by their names in the source."""

    def all(
        self, source: RunStore, target: RunStore, tool_calls: Iterable[ToolCall]
    ) -> dict[str, int]:
        counts = {table: self._plain(table) for table in _SEALED}
        for tool_call in tool_calls:
            target.journal.insert_tool_call(self._target, tool_call)
        # an earlier version kept options beside the source
        query = (
            "SELECT thread_id, id FROM trajectories WHERE thread_id NOT IN (SELECT thread_id FROM"
            " options)"
        )
        for thread_id, trajectory_id in self._source(query):
            if (text := source.options.in_a_file(thread_id, trajectory_id)) is not None:
                target.options.rows.insert(self._target, text, thread_id)
                counts["options"] += 1
        return counts | {
            "checkpoints": self._checkpoints(),
            "writes": self._writes(),
            "requests": self._requests(),
            "values": len(self._names),
        }

    def _plain(self, table: str) -> int:
        columns, sealed = _SEALED[table]
        names = [name.strip() for name in columns.split(",")]
        order = _ORDERS.get(table, "seq")
        rows = self._source(f"SELECT {columns} FROM {table} ORDER BY {order}")
        marks = ", ".join("?" * len(names))
        for row in rows:
            values = dict(zip(names, row, strict=True))
            for column, (word, *place) in sealed.items():
                where = (word, *(str(values[part]) for part in place))
                values[column] = self._sealing.seal(
                    self._opening.open(values[column], *where), *where
                )
            self._target.execute(
                f"INSERT INTO {table} ({columns}) VALUES ({marks})", list(values.values())
            )
        return len(rows)

    def _checkpoints(self) -> int:
        columns = "thread_id, ns, id, parent_id, run_id, manifest, metadata"
        rows = self._source(f"SELECT {columns} FROM checkpoints ORDER BY seq")
        for thread, ns, id_, parent, run_id, manifest, metadata in rows:
            place = (thread, ns, id_)
            rest, channels = read_manifest(self._opening.open(manifest, *place))
            self._values(ref for _, ref in channels.values() if ref is not None)
            renamed = [
                [name, version, self._renamed(ref)] for name, (version, ref) in channels.items()
            ]
            facts = self._opening.open(metadata, *place, "metadata")
            self._target.execute(
                f"INSERT INTO checkpoints ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    *(
                        *place,
                        parent,
                        run_id,
                        self._sealing.seal(ormsgpack.packb([rest, renamed]), *place),
                    ),
                    self._sealing.seal(facts, *place, "metadata"),
                ),
            )
        return len(rows)

    def _writes(self) -> int:
        columns = "thread_id, ns, checkpoint_id, task_id, slot, task_path, data"
        rows = self._source(f"SELECT {columns} FROM writes")
        for thread, ns, checkpoint, task, slot, task_path, data in rows:
            place = (thread, ns, checkpoint, task, str(slot))
            held: list[list[Any]] = ormsgpack.unpackb(self._opening.open(data, *place))
            self._values(ref for _, _, ref in held)
            packed = ormsgpack.packb(
                [[index, channel, self._renamed(ref)] for index, channel, ref in held]
            )
            self._target.execute(
                f"INSERT INTO writes ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (thread, ns, checkpoint, task, slot, task_path, self._sealing.seal(packed, *place)),
            )
        return len(rows)

    def _requests(self) -> int:
        rows = self._source("SELECT call_id, data FROM requests ORDER BY call_id")
        for call_id, data in rows:
            held = read_request(self._opening.open(data, "request", call_id))
            self._values(held)
            packed = ormsgpack.packb([self._renamed(ref) for ref in held])
            sealed = self._sealing.seal(packed, "request", call_id)
            self._target.execute(
                "INSERT INTO requests (call_id, data) VALUES (?, ?)", (call_id, sealed)
            )
        return len(rows)

    def _values(self, wanted: Iterable[Any]) -> None:
        """Copy values with all values that they refer to, referenced ones first."""
        levels: list[list[tuple[bytes, int, bytes]]] = []
        missing = _missing(wanted, self._names)
        while missing:
            levels.append(list(self._fetch(missing)))
            inner = (hash_ for _, kind, data in levels[-1] for hash_ in references(kind, data))
            missing = _missing(inner, self._names)
        for level in reversed(levels):
            for hash_, kind, data in level:
                if hash_ not in self._names:
                    self._names[hash_] = self._insert(kind, self._node(kind, data))

    def _fetch(self, hashes: Sequence[bytes]) -> Iterable[tuple[bytes, int, bytes]]:
        for start in range(0, len(hashes), _AT_ONCE):
            some = hashes[start : start + _AT_ONCE]
            marks = ", ".join("?" * len(some))
            query = f"SELECT hash, kind, data FROM blobs WHERE hash IN ({marks})"
            for hash_, kind, data in self._source(query, some):
                yield bytes(hash_), int(kind), self._opening.open(data, "blob", bytes(hash_))

    def _insert(self, kind: int, data: bytes) -> bytes:
        name = hash_of(kind, data, self._sealing.hash_key)
        sealed = self._sealing.seal(data, "blob", name)
        self._target.execute(
            "INSERT INTO blobs (hash, kind, data) VALUES (?, ?, ?) ON CONFLICT (hash) DO NOTHING",
            (name, kind, sealed),
        )
        return name

    def _node(self, kind: int, data: bytes) -> bytes:
        """Bytes of a value with its references replaced."""
        if kind < LIST:
            return data
        held: list[Any] = ormsgpack.unpackb(data)
        if kind == DICT:
            return ormsgpack.packb([[name, self._renamed(ref)] for name, ref in held])
        return ormsgpack.packb([self._renamed(ref) for ref in held])

    def _renamed(self, reference: Any) -> Any:
        if reference is None:
            return None
        if isinstance(reference, bytes):
            if reference not in self._names:
                raise StoreError(
                    f"The value {reference.hex()} is lost. Nothing was copied.",
                    _LIST_DAMAGE,
                )
            return self._names[reference]
        return [reference[0], self._node(int(reference[0]), reference[1])]


def _missing(wanted: Iterable[Any], known: dict[bytes, bytes]) -> list[bytes]:
    named = (
        hash_
        for ref in wanted
        for hash_ in ([ref] if isinstance(ref, bytes) else references(int(ref[0]), ref[1]))
    )
    return [hash_ for hash_ in dict.fromkeys(named) if hash_ not in known]
