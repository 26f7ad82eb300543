"""Scans of all rows of a store: tables in parts, and rows that refer to values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import ormsgpack

from hrm_agent.errors import HrmError
from hrm_agent.store.checkpoints.reader import read_manifest
from hrm_agent.store.database.cursors import Cursor
from hrm_agent.store.values.cipher import Cipher
from hrm_agent.store.values.damage import DAMAGED
from hrm_agent.store.values.refusals import RefusedValue
from hrm_agent.store.values.sent_requests import read_request
from hrm_agent.store.values.value_reader import references

__all__ = ["UNREADABLE", "rows_of", "stored_references"]

_AT_ONCE = 500
UNREADABLE = (HrmError, RefusedValue, *DAMAGED)
"""Errors of reading a damaged row."""


def rows_of(cursor: Cursor, query: str) -> Iterator[Sequence[Any]]:
    """Rows of a table whose first column is `seq`, in batches and without that column."""
    last = -1
    while found := cursor.execute(
        f"{query} WHERE seq > ? ORDER BY seq LIMIT {_AT_ONCE}", (last,)
    ).fetchall():
        last = int(found[-1][0])
        yield from (row[1:] for row in found)


def stored_references(cipher: Cipher, cursor: Cursor) -> Iterator[tuple[str, list[bytes] | None]]:
    """Yield, for each checkpoint, for the writes of each task and for each request: its description,
    and the hashes of the values that it refers to (None if it cannot be read).
    """
    for thread, ns, id_, manifest in rows_of(
        cursor, "SELECT seq, thread_id, ns, id, manifest FROM checkpoints"
    ):
        where = f"thread {thread!r}, checkpoint {id_}"
        try:
            _, channels = read_manifest(cipher.open(manifest, thread, ns, id_))
            yield (
                where,
                [hash_ for _, ref in channels.values() if ref is not None for hash_ in _named(ref)],
            )
        except UNREADABLE as error:
            yield f"{where}: cannot be read ({error})", None
    query = "SELECT thread_id, ns, checkpoint_id, task_id, slot, data FROM writes"
    for *place, slot, data in cursor.execute(query).fetchall():
        where = f"thread {place[0]!r}, checkpoint {place[2]}, writes of task {place[3]}"
        try:
            held = ormsgpack.unpackb(cipher.open(data, *place, str(slot)))
            yield where, [hash_ for _, _, ref in held for hash_ in _named(ref)]
        except UNREADABLE as error:
            yield f"{where}: cannot be read ({error})", None
    for id_, data in cursor.execute("SELECT call_id, data FROM requests").fetchall():
        where = f"request of model call {id_}"
        try:
            yield (
                where,
                [
                    hash_
                    for ref in read_request(cipher.open(data, "request", id_))
                    for hash_ in _named(ref)
                ],
            )
        except UNREADABLE as error:
            yield f"{where}: cannot be read ({error})", None


def _named(reference: Any) -> list[bytes]:
    return (
        [reference] if isinstance(reference, bytes) else references(int(reference[0]), reference[1])
    )
