"""Lists of many trajectories: headers a page at a time, and the use of their threads, without
tokens and texts.

A list is read again and again while a run grows. Each record is decoded once: results are cached by
the record's bytes, so a changed record is a new entry. Long records are not cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from hrm_agent.errors import StoreError
from hrm_agent.store.database.cursors import Cursor, placeholders
from hrm_agent.store.journal.records import CALLS, HEADERS, OVERLAYS, TOOL_CALLS, RecordKind
from hrm_agent.store.run_store import RunStore
from hrm_agent.store.values.damage import DAMAGED, OnDamage
from hrm_agent.store.values.packed_records import plain_mask
from hrm_agent.trajectory import Call, Overlay, ToolStatus, Trajectory

__all__ = [
    "StoredHeader",
    "ThreadUse",
    "ToolMark",
    "headers_page",
    "overlays_of",
    "tool_marks",
    "uses_of_threads",
]

T = TypeVar("T")
_AT_ONCE = 500
"""Maximum number of values in one query."""
_KEPT_BYTES, _KEPT = 4_096, 12_000
"""Longest record in bytes whose decoded form is cached, and number of cached forms."""


class StoredHeader(NamedTuple):
    """Trajectory without its calls."""

    seq: int
    """Number of the row, in the order in which trajectories started."""
    header: Trajectory
    """Fields of the trajectory without its calls."""


class ThreadUse(NamedTuple):
    """Use of model calls and tokens by a thread, without inherited calls."""

    model_calls: int
    """Number of model calls."""
    output_tokens: int | None
    """Completion tokens, counted as in `Trajectory.used` (None if no call reports any)."""


class ToolMark(NamedTuple):
    """Summary of a tool call for a list."""

    id: str
    """Id of the tool call's record."""
    name: str
    """Name of the tool."""
    status: ToolStatus | None
    """Status of the call (None while it is running)."""
    role: str
    """Role that called the tool."""
    seconds: float
    """Duration in seconds."""


def headers_page(
    store: RunStore,
    where: str,
    values: Sequence[Any],
    on_damage: OnDamage,
    *,
    limit: int | None = None,
) -> list[StoredHeader]:
    """Headers of trajectories, in the order in which they started. `on_damage` is called for a
    damaged header, which is left out.
    """
    query = f"SELECT id, record, seq FROM trajectories WHERE {where} ORDER BY seq"
    with store.database.read() as cursor:
        rows = cursor.execute(
            query + (f" LIMIT {int(limit)}" if limit is not None else ""), values
        ).fetchall()
    headers = _HEADERS.rows(store.cipher, rows, on_damage)
    return [StoredHeader(int(seq), header) for (_, _, seq), header in headers]


def overlays_of(
    store: RunStore,
    run_id: str,
    on_damage: OnDamage,
    *,
    step: int | None = None,
    ids: Sequence[str] = (),
) -> dict[str, Overlay]:
    """Overlays of a run by trajectory, for one of its steps or for trajectories with these ids.

    `on_damage` is called for a damaged overlay, which is left out.
    """
    select = "SELECT run_id, trajectory_id, record FROM overlays WHERE run_id = ? AND"
    with store.database.read() as cursor:
        if step is not None:
            rows = cursor.execute(f"{select} step = ? ORDER BY seq", (run_id, step)).fetchall()
        else:
            rows = list(_in_chunks(cursor, f"{select} trajectory_id IN", ids, (run_id,)))
    overlays = _OVERLAYS.rows(store.cipher, rows, on_damage)
    return {str(row[1]): overlay for row, overlay in overlays}


def uses_of_threads(store: RunStore, threads: Sequence[str]) -> dict[str, ThreadUse]:
    """Model calls and completion tokens of threads that have calls. Damaged calls count, failed
    ones do not.
    """
    query = (
        "SELECT c.thread_id, c.id, t.mask FROM calls c LEFT JOIN tokens t ON t.call_id = c.id WHERE"
        " c.thread_id IN"
    )
    calls: dict[str, int] = {}
    tokens: dict[str, int] = {}
    reported: dict[str, str] = {}
    with store.database.read() as cursor:
        for thread, id_, mask in _in_chunks(cursor, query, threads):
            calls[thread] = calls.get(thread, 0) + 1
            sampled = _sampled(store, str(id_), mask)
            if sampled is None:
                reported[str(id_)] = str(thread)
            else:
                tokens[thread] = tokens.get(thread, 0) + sampled
        for id_, record in _in_chunks(
            cursor, "SELECT id, record FROM calls WHERE id IN", list(reported)
        ):
            call = _read_call(store, str(id_), record)
            thread = reported[str(id_)]
            if call is not None and call.error is not None:
                calls[thread] -= 1
            elif call is not None and call.used is not None and call.used.output_tokens is not None:
                tokens[thread] = tokens.get(thread, 0) + call.used.output_tokens
    return {
        thread: ThreadUse(count, tokens.get(thread)) for thread, count in calls.items() if count
    }


def tool_marks(
    store: RunStore, threads: Sequence[str], on_damage: OnDamage
) -> dict[str, list[ToolMark]]:
    """Tool calls of threads, in the order in which they started. `on_damage` is called for a
    damaged tool call, which is left out.
    """
    found: dict[str, list[ToolMark]] = {}
    query = "SELECT id, record, thread_id, seq FROM tool_calls WHERE thread_id IN"
    with store.database.read() as cursor:
        rows = sorted(_in_chunks(cursor, query, threads), key=lambda row: int(row[3]))
    for (_, _, thread, _), mark in _TOOL_MARKS.rows(store.cipher, rows, on_damage):
        found.setdefault(str(thread), []).append(mark)
    return found


def _in_chunks(
    cursor: Cursor, query: str, values: Sequence[str], before: Sequence[Any] = ()
) -> Iterator[Any]:
    """Rows of `query (?, ?, ...)`, for any number of values."""
    for start in range(0, len(values), _AT_ONCE):
        some = values[start : start + _AT_ONCE]
        yield from cursor.execute(
            f"{query} ({placeholders(len(some))})", (*before, *some)
        ).fetchall()


def _sampled(store: RunStore, call_id: str, mask: bytes | None) -> int | None:
    """Completion tokens of a call (None if it has no token ids, 0 if it is damaged)."""
    if mask is None:
        return None
    with suppress(StoreError, *DAMAGED):  # damage is reported where the call is shown
        plain = plain_mask(store.cipher.open(mask, "mask", call_id))
        return plain.count(1) if plain else None
    return 0


def _read_call(store: RunStore, call_id: str, record: bytes) -> Call | None:
    with suppress(StoreError, *DAMAGED):
        return CALLS.opened(store.cipher, (call_id,), record)
    return None


def _read_tool_mark(plain: bytes) -> ToolMark:
    call = TOOL_CALLS.load(plain)
    return ToolMark(call.id, call.name, call.status, call.identity.role, call.duration_seconds)


def _cached(kind: RecordKind[Any], load: Callable[[bytes], T]) -> RecordKind[T]:
    kept = lru_cache(maxsize=_KEPT)(load)
    return replace(kind, load=lambda plain: (kept if len(plain) <= _KEPT_BYTES else load)(plain))


_HEADERS = _cached(HEADERS, HEADERS.load)
_OVERLAYS = _cached(OVERLAYS, OVERLAYS.load)
_TOOL_MARKS = _cached(TOOL_CALLS, _read_tool_mark)
