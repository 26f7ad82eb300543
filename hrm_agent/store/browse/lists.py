"""Many trajectories at a glance: headers a page at a time, and what their threads used, without
tokens and texts.

A list is looked at again and again while a run grows. What a record says is decoded once: a
record's bytes are looked up among those that were decoded before, so that a changed one is simply
another. Long ones are not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from hrm_agent.errors import StoreError
from hrm_agent.store.database.cursors import Cursor, placeholders
from hrm_agent.store.run_store import RunStore
from hrm_agent.store.values.damage import DAMAGED, OnDamage, reading
from hrm_agent.store.values.packed_records import plain_mask, plain_record
from hrm_agent.trajectory import Call, Overlay, ToolCall, ToolStatus, Trajectory

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
"""Values in one query."""
_KEPT_BYTES, _KEPT = 4_096, 12_000
"""A longer record is not kept when it was decoded; how many are."""


class StoredHeader(NamedTuple):
    """A trajectory without its calls."""

    seq: int
    """Number of its row, in the order in which trajectories were begun."""
    header: Trajectory
    """Its own fields."""


class ThreadUse(NamedTuple):
    """What a thread's own calls come to."""

    model_calls: int
    """Number of model calls."""
    output_tokens: int | None
    """As `Trajectory.used` counts them; None where nobody reported any."""


class ToolMark(NamedTuple):
    """A tool call, as a list shows it."""

    id: str
    """Its id."""
    name: str
    """Name of the tool."""
    status: ToolStatus | None
    """How it ended; None while it is under way."""
    role: str
    """Who called."""
    seconds: float
    """Its duration."""


def headers_page(
    store: RunStore,
    where: str,
    values: Sequence[Any],
    on_damage: OnDamage,
    *,
    limit: int | None = None,
) -> list[StoredHeader]:
    """Headers of trajectories, in the order in which they were begun. A damaged one is told, and
    the others follow.
    """
    query = f"SELECT seq, id, record FROM trajectories WHERE {where} ORDER BY seq"
    with store.database.read() as cursor:
        rows = cursor.execute(
            query + (f" LIMIT {int(limit)}" if limit is not None else ""), values
        ).fetchall()
    found: list[StoredHeader] = []
    for seq, id_, record in rows:
        try:
            with reading("trajectory", id_):
                plain = plain_record(store.cipher.open(record, "trajectory", id_))
                found.append(StoredHeader(int(seq), _kept(_header, _read_header, plain)))
        except StoreError as error:
            on_damage(str(id_), error)
    return found


def overlays_of(
    store: RunStore,
    run_id: str,
    on_damage: OnDamage,
    *,
    step: int | None = None,
    ids: Sequence[str] = (),
) -> dict[str, Overlay]:
    """What a run made of the trajectories of one of its steps, or of those with these ids, by
    trajectory.
    """
    found: dict[str, Overlay] = {}
    with store.database.read() as cursor:
        if step is not None:
            query = (
                "SELECT trajectory_id, record FROM overlays WHERE run_id = ? AND step = ? ORDER"
                " BY seq"
            )
            rows = cursor.execute(query, (run_id, step)).fetchall()
        else:
            query = (
                "SELECT trajectory_id, record FROM overlays WHERE run_id = ? AND trajectory_id IN"
            )
            rows = list(_in_chunks(cursor, query, ids, (run_id,)))
    for id_, record in rows:
        try:
            with reading("judgement", f"{run_id} of {id_}"):
                plain = store.cipher.open(record, "overlay", run_id, id_)
                found[str(id_)] = _kept(_overlay, _read_overlay, plain)
        except StoreError as error:
            on_damage(str(id_), error)
    return found


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
            call, thread = _read_call(store, str(id_), record), reported[str(id_)]
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
    """The tool calls of threads, in the order in which they were started."""
    found: dict[str, list[ToolMark]] = {}
    query = "SELECT seq, thread_id, id, record FROM tool_calls WHERE thread_id IN"
    with store.database.read() as cursor:
        rows = sorted(_in_chunks(cursor, query, threads), key=lambda row: int(row[0]))
    for _, thread, id_, record in rows:
        try:
            with reading("tool call", str(id_)):
                plain = plain_record(store.cipher.open(record, "tool", id_))
                found.setdefault(str(thread), []).append(_kept(_tool_mark, _read_tool_mark, plain))
        except StoreError as error:
            on_damage(str(id_), error)
    return found


def _in_chunks(
    cursor: Cursor, query: str, values: Sequence[str], before: Sequence[Any] = ()
) -> Iterator[Any]:
    """Rows of `query (?, ?, ...)`, however many values there are."""
    for start in range(0, len(values), _AT_ONCE):
        some = values[start : start + _AT_ONCE]
        yield from cursor.execute(
            f"{query} ({placeholders(len(some))})", (*before, *some)
        ).fetchall()


def _sampled(store: RunStore, call_id: str, mask: bytes | None) -> int | None:
    """Completion tokens of a call; None for one without token ids."""
    if mask is None:
        return None
    with suppress(StoreError, *DAMAGED):  # told where the call is shown; a sum goes on without it
        plain = plain_mask(store.cipher.open(mask, "mask", call_id))
        return plain.count(1) if plain else None
    return 0


def _read_call(store: RunStore, call_id: str, record: bytes) -> Call | None:
    with suppress(StoreError, *DAMAGED):
        return Call.model_validate_json(plain_record(store.cipher.open(record, "call", call_id)))
    return None


def _kept(kept: Callable[[bytes], T], read: Callable[[bytes], T], plain: bytes) -> T:
    return (kept if len(plain) <= _KEPT_BYTES else read)(plain)


def _read_header(plain: bytes) -> Trajectory:
    return Trajectory.model_validate_json(plain)


def _read_overlay(plain: bytes) -> Overlay:
    return Overlay.model_validate_json(plain)


def _read_tool_mark(plain: bytes) -> ToolMark:
    call = ToolCall.model_validate_json(plain)
    return ToolMark(call.id, call.name, call.status, call.identity.role, call.duration_seconds)


_header = lru_cache(maxsize=_KEPT)(_read_header)
_overlay = lru_cache(maxsize=_KEPT)(_read_overlay)
_tool_mark = lru_cache(maxsize=_KEPT)(_read_tool_mark)
