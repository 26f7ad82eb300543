"""Calls of one thread in order of time, without texts and tokens, for paging.

Also the tokens that a model saw and generated on the path to one call, by call.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple, cast

from hrm_agent.errors import StoreError
from hrm_agent.store.database.cursors import Cursor, placeholders
from hrm_agent.store.run_store import RunStore
from hrm_agent.store.values.damage import DAMAGED, OnDamage, in_a_line, reading
from hrm_agent.store.values.packed_records import plain_mask, plain_numbers, plain_record
from hrm_agent.trajectory import CallUsage
from hrm_agent.trajectory.call_facts import reported_usage, role_of_call

__all__ = ["CallMark", "CallTokens", "call_marks", "call_tokens", "path_of_call"]

_KEPT_BYTES, _KEPT = 8_192, 12_000


class CallMark(NamedTuple):
    """Summary of a model call or a tool call."""

    kind: str
    """`call` or `tool`."""
    id: str
    """Id of the call."""
    thread_id: str
    """Thread of the call. In a fork's lineage it differs from the fork's own thread."""
    at: float
    """Unix time in seconds for ordering a transcript: the end of a model call, the start of a tool
    call.
    """
    role: str
    """Node of the outermost graph that made the call."""
    status: str | None
    """Status of an ended tool call, or `failed` for a failed model call (None for other model calls
    and running tools).
    """
    model: str
    """Model that answered. Empty for a tool call."""
    asked: tuple[str, ...]
    """Ids of the tool calls in a model's message. For a tool call, the id that it answers."""
    used: CallUsage | None
    """Tokens and cost of a model call, as far as known."""
    parent: str | None
    """Id of the model call that this one extends."""


def call_marks(
    store: RunStore, threads: Iterable[tuple[str, set[str] | None]], on_damage: OnDamage
) -> list[CallMark]:
    """Model calls, then tool calls, each in the order of the threads and of writing.

    `threads`: thread ids with the steps to include (None for all). `on_damage` is called for a
    damaged record, which is left out.
    """
    threads = list(threads)
    calls: list[CallMark] = []
    tools: list[CallMark] = []
    with store.database.read() as cursor:
        for thread, steps in threads:
            calls += _calls(store, cursor, thread, steps, on_damage)
        for thread, steps in threads:
            tools += _tools(store, cursor, thread, steps, on_damage)
    return calls + tools


def _calls(
    store: RunStore, cursor: Cursor, thread: str, steps: set[str] | None, on_damage: OnDamage
) -> Sequence[CallMark]:
    query = (
        "SELECT c.checkpoint_id, c.id, c.record, t.mask FROM calls c LEFT JOIN tokens t ON"
        " t.call_id = c.id WHERE c.thread_id = ? ORDER BY c.seq"
    )
    found: list[CallMark] = []
    rows = cursor.execute(query, (thread,))
    while (row := rows.fetchone()) is not None:
        step, id_, record, mask = row
        if steps is not None and str(step) not in steps:
            continue
        try:
            plain = plain_record(store.cipher.open(record, "call", id_))
            mark = (_kept_call if len(plain) <= _KEPT_BYTES else _call_mark)(plain)
            sampled = (
                plain_mask(store.cipher.open(mask, "mask", id_)).count(1) if mask is not None else 0
            )
            has_tokens = mask is not None and len(mask) > 0
        except (StoreError, *DAMAGED) as error:
            _tell(on_damage, "model call", str(id_), error)
            continue
        used = (
            (mark.used or CallUsage()).model_copy(update={"output_tokens": sampled})
            if has_tokens
            else mark.used
        )
        found.append(mark._replace(used=used, thread_id=thread))
    return found


def _tools(
    store: RunStore, cursor: Cursor, thread: str, steps: set[str] | None, on_damage: OnDamage
) -> Sequence[CallMark]:
    query = "SELECT checkpoint_id, id, record FROM tool_calls WHERE thread_id = ? ORDER BY seq"
    found: list[CallMark] = []
    rows = cursor.execute(query, (thread,))
    while (row := rows.fetchone()) is not None:
        step, id_, record = row
        if steps is not None and str(step) not in steps:
            continue
        try:
            plain = plain_record(store.cipher.open(record, "tool", id_))
            mark = (_kept_tool if len(plain) <= _KEPT_BYTES else _tool_mark)(plain)
        except (StoreError, *DAMAGED) as error:
            _tell(on_damage, "tool call", str(id_), error)
            continue
        found.append(mark._replace(thread_id=thread))
    return found


def _tell(on_damage: OnDamage, what: str, id_: str, error: Exception) -> None:
    said = (
        error.message
        if isinstance(error, StoreError)
        else f"The {what} {id_} cannot be read: {in_a_line(error)}."
    )
    on_damage(id_, StoreError(said, "`hrm-agent store verify` lists what is damaged."))


def _call_mark(plain: bytes) -> CallMark:
    record = cast("dict[str, Any]", json.loads(plain))
    response = cast("dict[str, Any]", record["response"])
    asked = [call for call in response.get("tool_calls") or () if isinstance(call, dict)]
    usage = record.get("usage")
    with suppress(*DAMAGED):
        used = CallUsage.model_validate(usage) if usage else reported_usage(response)
        return CallMark(
            "call",
            str(record["id"]),
            "",
            float(record["ended_at"]),
            _role(record["identity"]),
            "failed" if record.get("error") else None,
            str(record.get("answered_by") or record["model"]),
            tuple(str(call.get("id")) for call in cast("list[dict[str, Any]]", asked)),
            used,
            record.get("parent"),
        )
    raise ValueError("it is no model call")


def _tool_mark(plain: bytes) -> CallMark:
    record = cast("dict[str, Any]", json.loads(plain))
    at = float(record.get("started_at") or 0.0)
    role = _role(record["identity"])
    asked = (str(record["tool_call_id"]),)
    return CallMark(
        "tool", str(record["id"]), "", at, role, record.get("status"), "", asked, None, None
    )


def _role(identity: dict[str, Any]) -> str:
    """Role of a call, as in `GraphIdentity.role`."""
    namespace, node, agent = (
        str(identity.get(name) or "") for name in ("checkpoint_ns", "node", "agent")
    )
    return role_of_call(namespace, node, agent)


_kept_call = lru_cache(maxsize=_KEPT)(_call_mark)
_kept_tool = lru_cache(maxsize=_KEPT)(_tool_mark)


_AT_ONCE = 500


class CallTokens(NamedTuple):
    """Tokens that one call adds to its parent."""

    token_ids: array[int]
    """Prompt tokens first, then completion tokens."""
    mask: bytes
    """1 for completion tokens, 0 for prompt tokens."""
    logprobs: array[float]
    """Log probabilities, 0 for prompt tokens."""


def path_of_call(store: RunStore, call_id: str) -> list[str]:
    """Ids of the calls from the root to this one (empty if it is missing). A forged cycle is
    cut.
    """
    parents: dict[str, str | None] = {}
    path: dict[str, None] = {}
    here: str | None = call_id
    with store.database.read() as cursor:
        while here is not None and here not in path:
            if here not in parents and not _learn(cursor, here, parents):
                break
            path[here] = None
            here = parents[here]
    return list(path)[::-1]


def _learn(cursor: Cursor, call_id: str, parents: dict[str, str | None]) -> bool:
    """Read the parents of all calls on the thread of a call. A path is on one thread, except for
    inherited calls of a fork.

    False if the call is missing.
    """
    row = cursor.execute("SELECT thread_id FROM calls WHERE id = ?", (call_id,)).fetchone()
    if row is None:
        return False
    rows = cursor.execute("SELECT id, parent FROM calls WHERE thread_id = ?", (row[0],)).fetchall()
    parents |= {str(id_): None if parent is None else str(parent) for id_, parent in rows}
    return call_id in parents


def call_tokens(store: RunStore, ids: Sequence[str]) -> dict[str, CallTokens]:
    """Tokens of calls by id. A call without token ids is left out. Raises `StoreError` for a
    damaged one.
    """
    found: dict[str, CallTokens] = {}
    opened = store.cipher.open
    with store.database.read() as cursor:
        for start in range(0, len(ids), _AT_ONCE):
            some = ids[start : start + _AT_ONCE]
            query = (
                "SELECT call_id, token_ids, mask, logprobs FROM tokens WHERE call_id IN"
                f" ({placeholders(len(some))})"
            )
            for id_, token_ids, mask, logprobs in cursor.execute(query, some).fetchall():
                with reading("tokens of model call", str(id_)):
                    found[str(id_)] = CallTokens(
                        array("i", plain_numbers(opened(token_ids, "tokens", id_))),
                        plain_mask(opened(mask, "mask", id_)),
                        array("f", plain_numbers(opened(logprobs, "logprobs", id_))),
                    )
    return found
