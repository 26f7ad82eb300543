"""The tokens that a model saw and gave on the way to one call, call by call, cut to a range."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from hrm_agent.store.cursors import Cursor, placeholders
from hrm_agent.store.damage import reading
from hrm_agent.store.packed_records import plain_mask, plain_numbers
from hrm_agent.store.run_store import RunStore

__all__ = ["CallTokens", "call_tokens", "path_of_call"]

_AT_ONCE = 500


class CallTokens(NamedTuple):
    """What one call adds to its parent."""

    token_ids: array[int]
    """Prompt tokens first, then completion tokens."""
    mask: bytes
    """1 for completion tokens."""
    logprobs: array[float]
    """0 for prompt tokens."""


def path_of_call(store: RunStore, call_id: str) -> list[str]:
    """Ids of the calls from the root to this one; empty if it is not there. A forged circle is cut."""
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
    """Parents of all calls of the thread of a call: a path lies on one thread, but for what a fork inherited."""
    row = cursor.execute("SELECT thread_id FROM calls WHERE id = ?", (call_id,)).fetchone()
    if row is None:
        return False
    rows = cursor.execute("SELECT id, parent FROM calls WHERE thread_id = ?", (row[0],)).fetchall()
    parents |= {str(id_): None if parent is None else str(parent) for id_, parent in rows}
    return call_id in parents


def call_tokens(store: RunStore, ids: Sequence[str]) -> dict[str, CallTokens]:
    """Tokens of calls, by their ids; one without token ids is left out. Raises `StoreError` for a damaged one."""
    found: dict[str, CallTokens] = {}
    opened = store.cipher.open
    with store.database.read() as cursor:
        for start in range(0, len(ids), _AT_ONCE):
            some = ids[start : start + _AT_ONCE]
            query = (
                f"SELECT call_id, token_ids, mask, logprobs FROM tokens WHERE call_id IN ({placeholders(len(some))})"
            )
            for id_, token_ids, mask, logprobs in cursor.execute(query, some).fetchall():
                with reading("tokens of model call", str(id_)):
                    found[str(id_)] = CallTokens(
                        array("i", plain_numbers(opened(token_ids, "tokens", id_))),
                        plain_mask(opened(mask, "mask", id_)),
                        array("f", plain_numbers(opened(logprobs, "logprobs", id_))),
                    )
    return found
