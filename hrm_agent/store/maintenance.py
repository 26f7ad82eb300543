"""Care of a store: what is in it, whether it is sound, and what may go.

Deleting threads removes their rows; the values that nothing names any more are collected afterwards, by marking what
checkpoints and writes still refer to. Whoever writes at the same time waits, or finds another epoch and hands its
values in again (`hrm_agent.store.blobs`). What a training run has judged is kept unless it is named: its overlays refer
to it. So is what a kept run was forked from.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ormsgpack
from pydantic import ValidationError

from hrm_agent.errors import HrmError, StoreError
from hrm_agent.store.checkpoint_codec import read_manifest
from hrm_agent.store.content_addressed import references
from hrm_agent.store.database import Cursor, placeholders
from hrm_agent.store.hashing import LIST, hash_of
from hrm_agent.store.leases import leased
from hrm_agent.store.run_store import RunStore
from hrm_agent.store.serializer import RefusedValue
from hrm_agent.store.threads import delete_threads
from hrm_agent.trajectory import RunStatus, Trajectory
from hrm_agent.trajectory.lint import lint

__all__ = ["Pruned", "Stats", "collect_values", "delete_runs", "prune", "stats", "verify"]

_AT_ONCE = 500
_UNREADABLE = (HrmError, RefusedValue, ValueError, TypeError, LookupError)
"""What reading a damaged row comes to."""
_BYTES = {
    "values": ("blobs", ("data",)),
    "checkpoints": ("checkpoints", ("manifest", "metadata")),
    "writes": ("writes", ("data",)),
    "model calls": ("calls", ("record",)),
    "tokens": ("tokens", ("token_ids", "mask", "logprobs")),
    "tool calls": ("tool_calls", ("record",)),
    "trajectories": ("trajectories", ("record",)),
    "overlays": ("overlays", ("record",)),
}
"""Kind -> its table and the columns that hold its contents."""


@dataclass(frozen=True, slots=True)
class Stats:
    """What a store holds."""

    rows: dict[str, int]
    """Number of rows by kind."""
    bytes: dict[str, int]
    """By kind: contents only, without keys and indexes."""
    size: int
    """Bytes on disk, all included."""
    threads: int
    """Number of threads."""
    by_status: dict[str, int]
    """Trajectories by their status."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What pruning took, or would take."""

    thread_ids: tuple[str, ...]
    """Threads that were deleted, or would be."""
    kept: dict[str, int]
    """Reason -> threads that were due and stay."""
    freed: int
    """Values that were collected; 0 where nothing was done yet."""


def stats(store: RunStore) -> Stats:
    """Rows and bytes by kind."""
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


def verify(store: RunStore) -> Iterator[str]:
    """What is wrong with a store, in words; nothing if it is sound.

    The database's own check, every value against its hash, every reference of checkpoints, writes and calls, and the
    invariants of every trajectory that has ended.
    """
    yield from store.database.problems()
    known: set[bytes] = set()
    with store.database.read() as cursor:
        yield from _values(store, cursor, known)
        for where, found in _references(store, cursor):
            if found is None:
                yield where
            elif lost := [hash_ for hash_ in found if hash_ not in known]:
                yield f"{where}: names the value {lost[0].hex()}, which is not in the store"
        yield from _dangling(cursor)
    yield from _trajectories(store)


def _values(store: RunStore, cursor: Cursor, known: set[bytes]) -> Iterator[str]:
    nested: list[tuple[bytes, bytes]] = []
    for hash_, kind, data in _rows(cursor, "SELECT seq, hash, kind, data FROM blobs"):
        name = bytes(hash_)
        known.add(name)
        try:
            opened = store.cipher.open(data, "blob", name)
            held = references(int(kind), opened)
        except _UNREADABLE as error:
            yield f"value {name.hex()}: {error}"
            continue
        if hash_of(int(kind), opened, store.cipher.hash_key) != name:
            yield f"value {name.hex()}: its bytes do not have this hash"
        nested.extend((name, child) for child in held)
    yield from (
        f"value {name.hex()}: names {child.hex()}, which is lost" for name, child in nested if child not in known
    )


def _rows(cursor: Cursor, query: str) -> Iterator[Sequence[Any]]:
    """Rows of a table whose first column is `seq`, some at a time."""
    last = -1
    while found := cursor.execute(f"{query} WHERE seq > ? ORDER BY seq LIMIT {_AT_ONCE}", (last,)).fetchall():
        last = int(found[-1][0])
        yield from (row[1:] for row in found)


def _references(store: RunStore, cursor: Cursor) -> Iterator[tuple[str, list[bytes] | None]]:
    """Where values are named: of each checkpoint and each task's writes, the hashes; None if it cannot be read."""
    cipher = store.cipher
    for thread, ns, id_, manifest in _rows(cursor, "SELECT seq, thread_id, ns, id, manifest FROM checkpoints"):
        where = f"thread {thread!r}, checkpoint {id_}"
        try:
            _, channels = read_manifest(cipher.open(manifest, thread, ns, id_))
            yield where, [hash_ for _, ref in channels.values() if ref is not None for hash_ in _named(ref)]
        except _UNREADABLE as error:
            yield f"{where}: cannot be read ({error})", None
    query = "SELECT thread_id, ns, checkpoint_id, task_id, slot, data FROM writes"
    for *place, slot, data in cursor.execute(query).fetchall():
        where = f"thread {place[0]!r}, checkpoint {place[2]}, writes of task {place[3]}"
        try:
            held = ormsgpack.unpackb(cipher.open(data, *place, str(slot)))
            yield where, [hash_ for _, _, ref in held for hash_ in _named(ref)]
        except _UNREADABLE as error:
            yield f"{where}: cannot be read ({error})", None


def _named(reference: Any) -> list[bytes]:
    return [reference] if isinstance(reference, bytes) else references(int(reference[0]), reference[1])


def _dangling(cursor: Cursor) -> Iterator[str]:
    """Rows that refer to rows that are not there.

    A run does not wait for a checkpoint to be stored before it goes on: where it is killed or refused, its tasks may
    have written to one that never was. Lost is one that another names as its parent.
    """
    checks = {
        "model call {}: has no tokens": "SELECT id FROM calls WHERE id NOT IN (SELECT call_id FROM tokens)",
        "tokens of {}: have no model call": "SELECT call_id FROM tokens WHERE call_id NOT IN (SELECT id FROM calls)",
        "model call {}: its parent is lost": "SELECT id FROM calls WHERE parent NOT IN (SELECT id FROM calls)",
        "writes of thread {}: their checkpoint is lost": (
            "SELECT DISTINCT w.thread_id FROM writes w LEFT JOIN checkpoints c ON c.thread_id = w.thread_id "
            "AND c.ns = w.ns AND c.id = w.checkpoint_id WHERE c.id IS NULL AND EXISTS (SELECT 1 FROM checkpoints n "
            "WHERE n.thread_id = w.thread_id AND n.ns = w.ns AND n.parent_id = w.checkpoint_id)"
        ),
    }
    for words, query in checks.items():
        yield from (words.format(row[0]) for row in cursor.execute(query).fetchall())


def _trajectories(store: RunStore) -> Iterator[str]:
    with store.database.read() as cursor:
        ids = [str(row[0]) for row in cursor.execute("SELECT id FROM trajectories ORDER BY seq").fetchall()]
    for id_ in ids:
        try:
            found = store.journal.find_trajectory(id_)
        except (HrmError, ValidationError) as error:
            yield f"trajectory {id_}: cannot be read ({' '.join(str(error).split())})"
            continue
        if found is not None and found.status is not RunStatus.RUNNING:
            yield from (f"trajectory {id_}: {finding}" for finding in lint(found))


# what may go


def prune(
    store: RunStore,
    *,
    older_than_seconds: float | None = None,
    status: Sequence[RunStatus] = (),
    keep_trained: bool = True,
    dry_run: bool = False,
) -> Pruned:
    """Delete the runs that ended before a time, or with a status, and collect their values.

    A run that is still under way stays, as does what a training run judged (`keep_trained`), and what a run that stays
    was forked from.
    """
    headers = store.journal.headers()
    before = time.time() - older_than_seconds if older_than_seconds is not None else None
    due = [h for h in headers if _is_due(h, before, status)]
    kept: dict[str, int] = {}
    if keep_trained:
        judged = _judged(store)
        kept["judged by a training run"] = sum(h.id in judged for h in due)
        due = [h for h in due if h.id not in judged]
    running = store.database.read_once(leased)
    kept["being run"] = sum(h.thread_id in running for h in due)
    due = [h for h in due if h.thread_id not in running]
    leaving = {h.id for h in due}
    needed = _origins((h for h in headers if h.id not in leaving), {h.id: h for h in headers})
    kept["a run that stays was forked from them"] = sum(h.id in needed for h in due)
    due = [h for h in due if h.id not in needed]
    freed = 0
    if due and not dry_run:
        _delete(store, due)
        freed = collect_values(store)
    return Pruned(tuple(h.thread_id for h in due), {why: count for why, count in kept.items() if count}, freed)


def _is_due(header: Trajectory, before: float | None, status: Sequence[RunStatus]) -> bool:
    if header.status is RunStatus.RUNNING and RunStatus.RUNNING not in status:
        return False
    old = before is None or (header.ended_at or header.started_at) < before
    return old and (not status or header.status in status)


def _judged(store: RunStore) -> set[str]:
    with store.database.read() as cursor:
        return {str(row[0]) for row in cursor.execute("SELECT DISTINCT trajectory_id FROM overlays").fetchall()}


def _origins(headers: Iterable[Trajectory], by_id: dict[str, Trajectory]) -> set[str]:
    """Ids of all that `headers` were forked from, over any number of forks."""
    found: set[str] = set()
    for header in headers:
        while header.forked_from is not None and header.forked_from.trajectory_id not in found:
            found.add(header.forked_from.trajectory_id)
            origin = by_id.get(header.forked_from.trajectory_id)
            if origin is None:
                break
            header = origin
    return found


def delete_runs(store: RunStore, thread_ids: Sequence[str]) -> int:
    """Delete threads with all that is on record of them, judgements included; returns how many values were freed.

    Raises `StoreError` for a thread that is not there, for one that is being run, and for one that a fork which stays
    begins with.
    """
    headers = store.journal.headers()
    by_id = {h.id: h for h in headers}
    due = {h.id: h for h in headers if h.thread_id in thread_ids or h.id in thread_ids}
    threads = {thread.thread_id for thread in store.threads()}
    for thread_id in thread_ids:
        if thread_id not in threads and thread_id not in due:
            raise StoreError(
                f"There is no thread {thread_id!r} in {store.url}.",
                f"`hrm-agent history --store {store.url}` lists what there is.",
            )
    needed = _origins((h for h in headers if h.id not in due), by_id) & due.keys()
    if needed:
        forks = [h.thread_id for h in headers if h.forked_from and h.forked_from.trajectory_id in needed]
        raise StoreError(
            f"Thread {due[min(needed)].thread_id!r} is what {', '.join(sorted(forks))} was forked from.",
            "Delete the forks too.",
        )
    bare = [thread_id for thread_id in thread_ids if thread_id in threads]
    running = store.database.read_once(leased) & {*bare, *(h.thread_id for h in due.values())}
    if running:
        raise StoreError(f"Thread {min(running)!r} is being run.", "Wait for it, or end it.")
    store.database.write(lambda cursor: delete_threads(cursor, bare))
    _delete(store, list(due.values()))
    return collect_values(store)


def _delete(store: RunStore, headers: Sequence[Trajectory]) -> None:
    def delete(cursor: Cursor) -> None:
        delete_threads(cursor, [header.thread_id for header in headers])
        for header in headers:
            thread = (header.thread_id,)
            cursor.execute("DELETE FROM tokens WHERE call_id IN (SELECT id FROM calls WHERE thread_id = ?)", thread)
            for table in ("calls", "tool_calls", "leases", "trajectories"):
                cursor.execute(f"DELETE FROM {table} WHERE thread_id = ?", thread)
            cursor.execute("DELETE FROM threads WHERE id = ?", thread)
            cursor.execute("DELETE FROM overlays WHERE trajectory_id = ?", (header.id,))

    store.database.write(delete)


def collect_values(store: RunStore) -> int:
    """Delete the values that no checkpoint and no write names; returns how many.

    Raises `StoreError` where something is damaged that may name values: they might be all that is left of it.
    """

    def collect(cursor: Cursor) -> int:
        marked: set[bytes] = set()
        fresh: set[bytes] = set()
        for where, found in _references(store, cursor):
            fresh.update(_sound(where, found))
        while fresh:
            marked |= fresh
            fresh = _children(store, cursor, fresh) - marked
        every = [bytes(row[0]) for row in cursor.execute("SELECT hash FROM blobs").fetchall()]
        loose = [hash_ for hash_ in every if hash_ not in marked]
        for start in range(0, len(loose), _AT_ONCE):
            some = loose[start : start + _AT_ONCE]
            cursor.execute(f"DELETE FROM blobs WHERE hash IN ({placeholders(len(some))})", some)
        if loose:
            cursor.execute("UPDATE meta SET value = ? WHERE key = 'epoch'", (secrets.token_hex(8),))
        return len(loose)

    return store.database.exclusive(collect)


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
        query = f"SELECT hash, kind, data FROM blobs WHERE kind >= {LIST} AND hash IN ({placeholders(len(some))})"
        for hash_, kind, data in cursor.execute(query, some).fetchall():
            found.update(_held(store, bytes(hash_), int(kind), data))
    return found


def _held(store: RunStore, hash_: bytes, kind: int, data: bytes) -> list[bytes]:
    try:
        return references(kind, store.cipher.open(data, "blob", hash_))
    except _UNREADABLE as error:
        return _sound(f"value {hash_.hex()}: cannot be read ({error})", None)
