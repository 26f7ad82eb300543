"""Maintenance of a store: contents, deletion, garbage collection.
`hrm_agent.store.upkeep.verification` checks it.

Deleting threads removes their rows and, in the same transaction, values without references.
References are marked from checkpoints, writes and model requests. If a damaged row may refer to
values, the threads are deleted, the values are kept until the next collection, and that is
reported. A parallel writer waits, or finds another epoch and hands in its values again
(`hrm_agent.store.values.blobs`). Runs that a training run has judged are kept unless they are
named, as its overlays refer to them. So are the origins of kept forks.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from hrm_agent.errors import StoreError
from hrm_agent.store.checkpoints.threads import delete_threads
from hrm_agent.store.database.cursors import Cursor, placeholders
from hrm_agent.store.database.leases import forget_leases, forget_unused_leases, leased
from hrm_agent.store.run_store import RunStore
from hrm_agent.store.upkeep.scan import UNREADABLE, stored_references
from hrm_agent.store.upkeep.verification import verify
from hrm_agent.store.values.packed_records import packed, packed_mask, packed_numbers
from hrm_agent.store.values.value_reader import LIST, references
from hrm_agent.trajectory import RunStatus, Trajectory, step_in_name

__all__ = [
    "Pruned",
    "Stats",
    "collect_values",
    "count_loose_values",
    "delete_runs",
    "prune",
    "prune_steps",
    "stats",
    "verify",
]

T = TypeVar("T")
_AT_ONCE = 500
_BYTES = {
    "values": ("blobs", ("data",)),
    "checkpoints": ("checkpoints", ("manifest", "metadata")),
    "writes": ("writes", ("data",)),
    "model calls": ("calls", ("record",)),
    "tokens": ("tokens", ("token_ids", "mask", "logprobs")),
    "requests": ("requests", ("data",)),
    "tool calls": ("tool_calls", ("record",)),
    "draws": ("draws", ("record",)),
    "trajectories": ("trajectories", ("record",)),
    "overlays": ("overlays", ("record",)),
    "scorings": ("scorings", ("record",)),
    "options": ("options", ("record",)),
}
"""Table and columns of the contents, by kind."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Contents of a store."""

    rows: dict[str, int]
    """Number of rows by kind."""
    bytes: dict[str, int]
    """Bytes by kind: contents only, without keys and indexes."""
    size: int
    """Bytes on disk, everything included."""
    threads: int
    """Number of threads."""
    by_status: dict[str, int]
    """Number of trajectories by status."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """Result of pruning, or of a dry run."""

    thread_ids: tuple[str, ...]
    """Threads that were deleted, or would be."""
    kept: dict[str, int]
    """Number of due threads that are kept, by reason."""
    freed: int
    """Number of values that were collected (0 in a dry run)."""


def stats(store: RunStore) -> Stats:
    """Rows and bytes of a store by kind."""
    rows: dict[str, int] = {}
    sizes: dict[str, int] = {}
    with store.database.read() as cursor:
        for kind, (table, columns) in _BYTES.items():
            lengths = " + ".join(f"coalesce(sum(length({column})), 0)" for column in columns)
            count, size = cursor.execute(f"SELECT count(*), {lengths} FROM {table}").fetchone()
            rows[kind], sizes[kind] = int(count), int(size)
        statuses = cursor.execute(
            "SELECT status, count(*) FROM trajectories GROUP BY status ORDER BY status"
        ).fetchall()
    by_status = {str(status): int(count) for status, count in statuses}
    return Stats(rows, sizes, store.database.size(), len(store.threads()), by_status)


# pruning and deletion


def prune(
    store: RunStore,
    *,
    older_than_seconds: float | None = None,
    status: Sequence[RunStatus] = (),
    keep_trained: bool = True,
    dry_run: bool = False,
) -> Pruned:
    """Delete the runs that ended before a time, or with a status, and collect their values.

    Runs of live processes are kept. So are interrupted runs with status `running`, unless `status`
    includes it, runs that a training run judged (`keep_trained`), and the origins of kept forks.
    """
    damaged: list[str] = []
    headers = store.journal.headers(on_damage=lambda id_, _: damaged.append(id_))
    before = time.time() - older_than_seconds if older_than_seconds is not None else None
    old = [h for h in headers if _is_due(h, before, status)]

    def choose(cursor: Cursor) -> Pruned:
        due = old
        kept = {"cannot be read: `hrm-agent store verify`": len(damaged)}
        if keep_trained:
            judged = {
                str(row[0])
                for row in cursor.execute("SELECT DISTINCT trajectory_id FROM overlays").fetchall()
            }
            kept["judged by a training run"] = sum(h.id in judged for h in due)
            due = [h for h in due if h.id not in judged]
        running = leased(store.database, cursor)
        kept["being run"] = sum(h.thread_id in running for h in due)
        due = [h for h in due if h.thread_id not in running]
        needed = _origins(cursor, {h.id for h in due})
        kept["a run that stays was forked from them"] = sum(h.id in needed for h in due)
        due = [h for h in due if h.id not in needed]
        if not dry_run:
            _delete(cursor, [h.id for h in due], [h.thread_id for h in due])
            forget_unused_leases(cursor)
        return Pruned(
            tuple(h.thread_id for h in due), {why: count for why, count in kept.items() if count}, 0
        )

    if dry_run:
        return store.database.read_once(choose)
    pruned, freed = _collecting(store, choose)  # a run may have been resumed since it was read
    return replace(pruned, freed=freed)


def prune_steps(store: RunStore, keep: int, *, dry_run: bool = False) -> Pruned:
    """Delete the checkpoints of training rollouts, except those of each training's newest `keep`
    steps.

    The data for learning remains: calls, tokens, tool calls, trajectories, judgements. The records
    of calls are packed. These rollouts can no longer be replayed, forked or inspected step by step.
    Running rollouts, forks and their origins are kept whole: a fork finds its origin's calls by
    checkpoints.
    """
    damaged: list[str] = []
    found = [
        (h, _step_of(h))
        for h in store.journal.headers(on_damage=lambda id_, _: damaged.append(id_))
    ]
    newest: dict[str, int] = {}
    for header, step in found:
        newest[header.run_id] = max(step, newest.get(header.run_id, -1))
    old = [
        h
        for h, step in found
        if 0 <= step <= newest[h.run_id] - keep and h.status is not RunStatus.RUNNING
    ]

    def choose(cursor: Cursor) -> Pruned:
        kept = {"cannot be read: `hrm-agent store verify`": len(damaged)}
        rows = cursor.execute("SELECT DISTINCT thread_id FROM checkpoints").fetchall()
        whole = {str(row[0]) for row in rows}
        due = [h for h in old if h.thread_id in whole]
        needed = _origins(cursor, ())
        running = leased(store.database, cursor)
        kept["forks"] = sum(h.forked_from is not None for h in due)
        due = [h for h in due if h.forked_from is None]
        kept["a run was forked from them"] = sum(h.id in needed for h in due)
        kept["being run"] = sum(h.thread_id in running for h in due)
        due = [h for h in due if h.id not in needed and h.thread_id not in running]
        for header in due if not dry_run else ():
            for table in ("writes", "checkpoints"):
                cursor.execute(f"DELETE FROM {table} WHERE thread_id = ?", (header.thread_id,))
            _pack(store, cursor, header.thread_id)
        return Pruned(
            tuple(h.thread_id for h in due), {why: count for why, count in kept.items() if count}, 0
        )

    if dry_run:
        return store.database.read_once(choose)
    pruned, freed = _collecting(store, choose)
    return replace(pruned, freed=freed)


_PACKED = (
    ("calls", "id", "record", "call", partial(packed, kind="call")),
    ("tool_calls", "id", "record", "tool", partial(packed, kind="tool")),
    ("trajectories", "id", "record", "trajectory", partial(packed, kind="trajectory")),
    ("tokens", "call_id", "token_ids", "tokens", packed_numbers),
    ("tokens", "call_id", "mask", "mask", packed_mask),
    ("tokens", "call_id", "logprobs", "logprobs", packed_numbers),
)
"""Columns to pack for a thread: table, key, column, name for encryption, and packing function."""


def _pack(store: RunStore, cursor: Cursor, thread_id: str) -> None:
    cipher = store.cipher
    for table, key, column, kind, pack in _PACKED:
        of_thread = (
            "call_id IN (SELECT id FROM calls WHERE thread_id = ?)"
            if table == "tokens"
            else "thread_id = ?"
        )
        rows = cursor.execute(
            f"SELECT {key}, {column} FROM {table} WHERE {of_thread}", (thread_id,)
        ).fetchall()
        for id_, stored in rows:
            sealed = cipher.seal(pack(cipher.open(stored, kind, id_)), kind, id_)
            cursor.execute(f"UPDATE {table} SET {column} = ? WHERE {key} = ?", (sealed, id_))


def _step_of(header: Trajectory) -> int:
    """Training step of a rollout (-1 for any other run)."""
    step = step_in_name(header.thread_id, header.run_id)
    return -1 if step is None else step


def _is_due(header: Trajectory, before: float | None, status: Sequence[RunStatus]) -> bool:
    if header.status is RunStatus.RUNNING and RunStatus.RUNNING not in status:
        return False
    old = before is None or (header.ended_at or header.started_at) < before
    return old and (not status or header.status in status)


def _origins(cursor: Cursor, leaving: Iterable[str]) -> set[str]:
    """Ids of all origins of the remaining trajectories, over any number of forks."""
    origins = dict(cursor.execute("SELECT id, origin FROM trajectories").fetchall())
    found: set[str] = set()
    for id_ in origins.keys() - set(leaving):
        origin = origins[id_]
        while origin is not None and origin not in found:
            found.add(origin)
            origin = origins.get(origin)
    return found


def delete_runs(store: RunStore, thread_ids: Sequence[str]) -> int:
    """Delete threads with all their records, including judgements. Returns the number of freed
    values.

    Raises `StoreError` for a thread that is missing, running, or the origin of a fork that is not
    deleted.
    """
    with store.database.read() as cursor:  # columns only, so that damaged rows can be deleted too
        rows = cursor.execute("SELECT id, thread_id, origin FROM trajectories").fetchall()
        due = {id_: thread for id_, thread, _ in rows if thread in thread_ids or id_ in thread_ids}
        needed = _origins(cursor, due) & due.keys()
    threads = {thread.thread_id for thread in store.threads()}
    for thread_id in thread_ids:
        if thread_id not in threads and thread_id not in due:
            raise StoreError(
                f"There is no thread {thread_id!r} in {store.url}.",
                f"`hrm-agent history --store {store.url}` lists what there is.",
            )
    if needed:
        forks = [thread for _, thread, origin in rows if origin in needed]
        raise StoreError(
            f"Thread {due[min(needed)]!r} is the origin of the forks {', '.join(sorted(forks))}.",
            "Delete the forks too.",
        )
    leaving = threads.intersection(thread_ids) | set(due.values())

    def delete(cursor: Cursor) -> None:
        if running := leased(store.database, cursor) & leaving:
            raise StoreError(f"Thread {min(running)!r} is being run.", "Wait for it, or end it.")
        _delete(cursor, due, leaving)

    return _collecting(store, delete)[1]


def _delete(cursor: Cursor, trajectory_ids: Iterable[str], thread_ids: Iterable[str]) -> None:
    """Delete trajectories, and threads with all their records."""
    for id_ in trajectory_ids:
        cursor.execute("DELETE FROM trajectories WHERE id = ?", (id_,))
        for table in ("overlays", "scorings"):
            cursor.execute(f"DELETE FROM {table} WHERE trajectory_id = ?", (id_,))
    leaving = sorted(thread_ids)
    delete_threads(cursor, leaving)
    for thread_id in leaving:
        forget_leases(cursor, thread_id)


def _collecting(store: RunStore, delete: Callable[[Cursor], T]) -> tuple[T, int]:
    """Result of `delete` and the number of values collected with it, in one transaction.

    Raises `StoreError` as `collect_values` does. Even then, the deletion is committed.
    """

    def both(cursor: Cursor) -> tuple[T, int, StoreError | None]:
        deleted = delete(cursor)
        try:
            return deleted, _collect(store, cursor), None
        except StoreError as error:
            return deleted, 0, error

    deleted, freed, damaged = store.database.exclusive(both)
    if damaged is not None:
        raise damaged
    return deleted, freed


def collect_values(store: RunStore) -> int:
    """Delete the values without a reference from any checkpoint, write or request. Returns their
    number.

    Raises `StoreError` if a damaged row may refer to values, since these values might be all that
    is left of the row.
    """
    return store.database.exclusive(lambda cursor: _collect(store, cursor))


def count_loose_values(store: RunStore) -> int:
    """Number of values without a reference. Raises `StoreError` as `collect_values` does.

    The checkpointer's own `delete_thread` and `prune` leave such values, and so do replaced writes.
    """
    return store.database.read_once(lambda cursor: len(_loose(store, cursor)))


def _collect(store: RunStore, cursor: Cursor) -> int:
    loose = _loose(store, cursor)
    for start in range(0, len(loose), _AT_ONCE):
        some = loose[start : start + _AT_ONCE]
        cursor.execute(f"DELETE FROM blobs WHERE hash IN ({placeholders(len(some))})", some)
    if loose:
        cursor.execute("UPDATE meta SET value = ? WHERE key = 'epoch'", (secrets.token_hex(8),))
    return len(loose)


def _loose(store: RunStore, cursor: Cursor) -> list[bytes]:
    marked: set[bytes] = set()
    fresh: set[bytes] = set()
    for where, found in stored_references(store.cipher, cursor):
        fresh.update(_sound(where, found))
    while fresh:
        marked |= fresh
        fresh = _children(store, cursor, fresh) - marked
    every = [bytes(row[0]) for row in cursor.execute("SELECT hash FROM blobs").fetchall()]
    return [hash_ for hash_ in every if hash_ not in marked]


def _sound(where: str, found: list[bytes] | None) -> list[bytes]:
    if found is None:
        raise StoreError(
            f"{where}. No values were collected.",
            "`hrm-agent store verify` lists what is damaged: delete those threads.",
        )
    return found


def _children(store: RunStore, cursor: Cursor, hashes: set[bytes]) -> set[bytes]:
    found: set[bytes] = set()
    listed = sorted(hashes)
    for start in range(0, len(listed), _AT_ONCE):
        some = listed[start : start + _AT_ONCE]
        query = (
            f"SELECT hash, kind, data FROM blobs WHERE kind >= {LIST} AND hash IN"
            f" ({placeholders(len(some))})"
        )
        for hash_, kind, data in cursor.execute(query, some).fetchall():
            found.update(_held(store, bytes(hash_), int(kind), data))
    return found


def _held(store: RunStore, hash_: bytes, kind: int, data: bytes) -> list[bytes]:
    try:
        return references(kind, store.cipher.open(data, "blob", hash_))
    except UNREADABLE as error:
        return _sound(f"value {hash_.hex()}: cannot be read ({error})", None)
