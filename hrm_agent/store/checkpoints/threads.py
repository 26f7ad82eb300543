"""Copying, forking and deleting of whole threads, in SQL that both SQLite and PostgreSQL accept.

A copy refers to the values of its source, so it costs only its manifests. Rows of an encrypted
store are bound to their thread, so they are encrypted again for the copy.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence

import ormsgpack

from hrm_agent.errors import StoreError
from hrm_agent.langgraph_format import deltas_of
from hrm_agent.store.checkpoints.reader import MEMORY, read_manifest
from hrm_agent.store.checkpoints.thread_heads import touch_thread
from hrm_agent.store.database.cursors import Cursor
from hrm_agent.store.database.leases import forget_leases
from hrm_agent.store.values.cipher import Cipher

__all__ = [
    "copy_rows",
    "delete_runs_checkpoints",
    "delete_threads",
    "keep_newest",
    "lineage",
]

_LINEAGE = """
WITH RECURSIVE line (id, parent_id) AS (
    SELECT id, parent_id FROM checkpoints WHERE thread_id = ? AND ns = '' AND id = ?
    UNION SELECT c.id, c.parent_id FROM checkpoints c JOIN line ON c.id = line.parent_id
    WHERE c.thread_id = ? AND c.ns = ''
)
SELECT id FROM line
"""


def lineage(cursor: Cursor, thread_id: str, checkpoint_id: str) -> list[str]:
    """Checkpoint of a thread and all its ancestors. Raises `StoreError` if the thread has no such
    checkpoint.
    """
    found = [
        str(row[0])
        for row in cursor.execute(_LINEAGE, (thread_id, checkpoint_id, thread_id)).fetchall()
    ]
    if not found:
        raise StoreError(
            f"Thread {thread_id!r} has no checkpoint {checkpoint_id!r}.",
            f"`hrm-agent history {thread_id}` lists its checkpoints.",
        )
    return found


def copy_rows(
    cursor: Cursor,
    cipher: Cipher,
    source: str,
    target: str,
    wanted: Iterable[tuple[str, str]] | None = None,
    without_writes: Iterable[tuple[str, str]] = (),
) -> None:
    """Copy checkpoints and writes of `source` to `target`: all, or only the `wanted` ones
    (namespace, id).

    Writes of `without_writes` are left out. Raises `StoreError` if `target` exists.
    """
    if cursor.execute(
        "SELECT 1 FROM checkpoints WHERE thread_id = ? LIMIT 1", (target,)
    ).fetchone():
        raise StoreError(f"There is a thread {target!r} already.", "Name another.")
    kept = None if wanted is None else set(wanted)
    silent = set(without_writes)
    query = (
        "SELECT ns, id, parent_id, run_id, manifest, metadata FROM checkpoints WHERE thread_id = ?"
        " ORDER BY seq"
    )
    for ns, id_, parent, run_id, manifest, metadata in cursor.execute(query, (source,)).fetchall():
        if kept is None or (ns, id_) in kept:
            cursor.execute(
                "INSERT INTO checkpoints (thread_id, ns, id, parent_id, run_id, manifest, metadata)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    *(target, ns, id_, parent, run_id),
                    _moved(cipher, manifest, (source, ns, id_), (target, ns, id_)),
                    _moved(
                        cipher,
                        metadata,
                        (source, ns, id_, "metadata"),
                        (target, ns, id_, "metadata"),
                    ),
                ),
            )
    query = (
        "SELECT ns, checkpoint_id, task_id, slot, task_path, data FROM writes WHERE thread_id = ?"
    )
    for ns, id_, task, slot, task_path, data in cursor.execute(query, (source,)).fetchall():
        if (kept is None or (ns, id_) in kept) and (ns, id_) not in silent:
            place = (ns, id_, task, str(slot))
            cursor.execute(
                "INSERT INTO writes (thread_id, ns, checkpoint_id, task_id, slot, task_path, data) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    target,
                    ns,
                    id_,
                    task,
                    slot,
                    task_path,
                    _moved(cipher, data, (source, *place), (target, *place)),
                ),
            )
    touch_thread(cursor, target, time.time())


def _moved(cipher: Cipher, data: bytes, from_: Sequence[str], to: Sequence[str]) -> bytes:
    return cipher.seal(cipher.open(data, *from_), *to)


def delete_threads(cursor: Cursor, thread_ids: Sequence[str]) -> None:
    """Delete checkpoints and writes of threads. Values without references are deleted when the
    store's values are collected.

    A thread with a trajectory remains listed. Without a trajectory nothing would refer to its other
    records, so they are deleted too.
    """
    for thread_id in thread_ids:
        thread = (thread_id,)
        cursor.execute("DELETE FROM writes WHERE thread_id = ?", thread)
        cursor.execute("DELETE FROM checkpoints WHERE thread_id = ?", thread)
        if (
            cursor.execute("SELECT 1 FROM trajectories WHERE thread_id = ?", thread).fetchone()
            is None
        ):
            _delete_record(cursor, thread_id)
            cursor.execute("DELETE FROM threads WHERE id = ?", thread)
            # the holder of a lease may start the thread again
            forget_leases(cursor, thread_id, given_back=True)


def _delete_record(cursor: Cursor, thread_id: str) -> None:
    """Delete a thread's records in the journal, except its trajectory."""
    for table in ("tokens", "requests"):
        of_thread = "SELECT id FROM calls WHERE thread_id = ?"
        cursor.execute(f"DELETE FROM {table} WHERE call_id IN ({of_thread})", (thread_id,))
    for table in ("calls", "tool_calls", "draws", "options"):
        cursor.execute(f"DELETE FROM {table} WHERE thread_id = ?", (thread_id,))


def keep_newest(cursor: Cursor, cipher: Cipher, thread_ids: Sequence[str]) -> None:
    """Delete the checkpoints of threads. In each namespace, keep the newest checkpoint and those on
    which its state depends.
    """
    for thread_id in thread_ids:
        query = "SELECT ns, max(id) FROM checkpoints WHERE thread_id = ? GROUP BY ns"
        newest = {(str(ns), str(id_)) for ns, id_ in cursor.execute(query, (thread_id,)).fetchall()}
        _move_memory(cursor, cipher, thread_id, dict(newest))
        kept = _with_sources(cursor, cipher, thread_id, newest)
        query = "SELECT ns, id FROM checkpoints WHERE thread_id = ?"
        found = {(str(ns), str(id_)) for ns, id_ in cursor.execute(query, (thread_id,)).fetchall()}
        _delete_checkpoints(cursor, thread_id, found - kept)


def _move_memory(cursor: Cursor, cipher: Cipher, thread_id: str, newest: dict[str, str]) -> None:
    """Move the items that earlier steps put into a LangGraph store to the newest checkpoint."""
    query = (
        "SELECT checkpoint_id, task_id, slot, data FROM writes WHERE thread_id = ? AND ns = '' AND "
    )
    query += "task_id >= ? AND task_id < ?"
    rows = cursor.execute(query, (thread_id, MEMORY, f"{MEMORY}~")).fetchall()
    line = set(lineage(cursor, thread_id, newest[""])) if rows else set[str]()
    for step, task_id, slot, data in rows:
        if step in line:
            moved = _moved(
                cipher,
                data,
                (thread_id, "", step, task_id, str(slot)),
                (thread_id, "", newest[""], task_id, str(slot)),
            )
            query = (
                "UPDATE writes SET checkpoint_id = ?, data = ? WHERE thread_id = ? AND ns = '' AND "
            )
            query += "checkpoint_id = ? AND task_id = ? AND slot = ?"
            cursor.execute(query, (newest[""], moved, thread_id, step, task_id, slot))


def delete_runs_checkpoints(cursor: Cursor, cipher: Cipher, run_ids: Sequence[str]) -> None:
    """Delete the checkpoints of LangGraph's runs, except those on which another run's state
    depends.
    """
    due: dict[str, set[tuple[str, str]]] = {}
    for run_id in run_ids:
        query = "SELECT thread_id, ns, id FROM checkpoints WHERE run_id = ?"
        for thread_id, ns, id_ in cursor.execute(query, (run_id,)).fetchall():
            due.setdefault(str(thread_id), set()).add((str(ns), str(id_)))
    for thread_id, doomed in due.items():
        query = "SELECT ns, id FROM checkpoints WHERE thread_id = ?"
        others = {
            (str(ns), str(id_)) for ns, id_ in cursor.execute(query, (thread_id,)).fetchall()
        } - doomed
        _delete_checkpoints(
            cursor, thread_id, doomed - _with_sources(cursor, cipher, thread_id, others)
        )


def _delete_checkpoints(
    cursor: Cursor, thread_id: str, places: Collection[tuple[str, str]]
) -> None:
    for table, column in (("writes", "checkpoint_id"), ("checkpoints", "id")):
        query = f"DELETE FROM {table} WHERE thread_id = ? AND ns = ? AND {column} = ?"
        for place in places:
            cursor.execute(query, (thread_id, *place))


def _with_sources(
    cursor: Cursor, cipher: Cipher, thread_id: str, wanted: Iterable[tuple[str, str]]
) -> set[tuple[str, str]]:
    """Checkpoints (namespace, id) with the ancestors that have the writes of their
    `DeltaChannel`s.
    """
    kept = set(wanted)
    query = (
        "SELECT parent_id, manifest, metadata FROM checkpoints WHERE thread_id = ? AND ns = ? AND"
        " id = ?"
    )
    for ns, id_ in [*kept]:
        missing: set[str] | None = None
        at: str | None = id_
        while (
            at is not None
            and (row := cursor.execute(query, (thread_id, ns, at)).fetchone()) is not None
        ):
            parent, manifest, metadata = row
            place = (thread_id, ns, at)
            if missing is None:
                missing = set(
                    deltas_of(ormsgpack.unpackb(cipher.open(metadata, *place, "metadata")))
                )
            if not missing:
                break
            kept.add((ns, at))
            _, channels = read_manifest(cipher.open(manifest, *place))
            missing -= {name for name, (_, reference) in channels.items() if reference is not None}
            at = parent if missing else None
    return kept
