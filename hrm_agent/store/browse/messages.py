"""Messages of a model call that an earlier call was not sent, without reading the common ones.

Requests are lists of references, and equal messages have equal references. So the lists of two
requests are compared, and only the messages that differ are read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import ormsgpack

from hrm_agent.store.database.cursors import Cursor, placeholders
from hrm_agent.store.run_store import RunStore
from hrm_agent.store.values.damage import DAMAGED
from hrm_agent.store.values.plain_reader import PlainLoader, ShownMessage, Unread
from hrm_agent.store.values.refusals import RefusedValue
from hrm_agent.store.values.sent_requests import read_request
from hrm_agent.store.values.value_reader import LIST, TREE, Reference, read_values

__all__ = ["NewMessages", "new_messages"]

_AT_ONCE = 500
_MOST = 1_000_000
"""Maximum number of messages, and of nodes, of one request."""
_WITH_TOOLS = (1, 3)


class NewMessages(NamedTuple):
    """New messages at the end of a request."""

    earlier: int
    """Number of messages before these: common ones, and new ones beyond the limit."""
    messages: tuple[dict[str, Any], ...]
    """Messages as dumps. A message of an unknown type has `unread`, which names the type."""
    problem: str | None
    """Reason why the messages cannot be read (None if they can)."""


def new_messages(
    store: RunStore, bases: Mapping[str, str | None], most: int
) -> dict[str, NewMessages]:
    """Messages that each call was sent beyond another call, by the call's id. A call without a
    stored request is left out.

    `bases`: the other call's id by the call's id (None to start at the first message). If there are
    more than `most` new messages, only the last are read.
    """
    ids = list({*bases, *(base for base in bases.values() if base is not None)})
    with store.database.read() as cursor:
        lists = _Lists(store, cursor)
        flat = lists.of_calls(ids)
        tails: dict[str, tuple[int, list[Reference]]] = {}
        for id_, base in bases.items():
            own = flat.get(id_)
            if own is not None:
                same = _common(flat.get(base or "") or [], own)
                tails[id_] = (max(same, len(own) - most), own[max(same, len(own) - most) :])
        return {id_: _read(store, cursor, *tail) for id_, tail in tails.items()}


class _Lists:
    """Requests as flat lists of references."""

    def __init__(self, store: RunStore, cursor: Cursor) -> None:
        self._store = store
        self._cursor = cursor
        self._nodes: dict[bytes, tuple[int, list[Reference]]] = {}

    def of_calls(self, ids: Sequence[str]) -> dict[str, list[Reference]]:
        parts: dict[str, list[Reference]] = {}
        for start in range(0, len(ids), _AT_ONCE):
            some = ids[start : start + _AT_ONCE]
            query = (
                f"SELECT call_id, data FROM requests WHERE call_id IN ({placeholders(len(some))})"
            )
            for id_, data in self._cursor.execute(query, some).fetchall():
                try:
                    found = read_request(self._store.cipher.open(data, "request", id_))
                    if not all(map(_is_reference, found)):
                        continue
                except DAMAGED:
                    continue
                parts[str(id_)] = found[:-1] if len(found) in _WITH_TOOLS else found
        self._fetch([part for each in parts.values() for part in each])
        return {
            id_: [ref for part in each for ref in self._flat(part)] for id_, each in parts.items()
        }

    def _fetch(self, roots: Sequence[Reference]) -> None:
        """Read the nodes of lists, level by level."""
        wanted = [root for root in roots if isinstance(root, bytes)]
        wanted += [
            r
            for root in roots
            if not isinstance(root, bytes)
            for r in _below(int(root[0]), _items(root[1]))
        ]
        while wanted := [hash_ for hash_ in dict.fromkeys(wanted) if hash_ not in self._nodes]:
            for start in range(0, len(wanted), _AT_ONCE):
                some = wanted[start : start + _AT_ONCE]
                query = (
                    f"SELECT hash, kind, data FROM blobs WHERE hash IN ({placeholders(len(some))})"
                )
                for hash_, kind, data in self._cursor.execute(query, some).fetchall():
                    key = bytes(hash_)
                    opened = self._store.cipher.open(data, "blob", key)
                    self._nodes[key] = (kind, _items(opened) if kind in (LIST, TREE) else [])
            missing = [hash_ for hash_ in wanted if hash_ not in self._nodes]
            self._nodes |= {hash_: (LIST, []) for hash_ in missing}
            wanted = [below for hash_ in wanted for below in _below(*self._nodes[hash_])]

    def _flat(self, reference: Reference) -> list[Reference]:
        found: list[Reference] = []
        stack = [reference]
        seen = 0
        while stack and len(found) < _MOST and seen < _MOST:  # forged nodes may refer to each other
            here = stack.pop()
            seen = seen + 1
            kind, items = (
                self._nodes[here] if isinstance(here, bytes) else (int(here[0]), _items(here[1]))
            )
            if kind == LIST:
                found += items
            elif kind == TREE:
                stack += reversed(items)
        return found


def _items(data: Any) -> list[Reference]:
    """References in a node (empty if it holds anything else)."""
    try:
        found: Any = ormsgpack.unpackb(data) if isinstance(data, bytes) else data
    except ormsgpack.MsgpackDecodeError:
        return []
    items = cast("list[Reference]", found) if isinstance(found, list) else []
    return items if all(map(_is_reference, items)) else []


def _is_reference(item: Any) -> bool:
    pair = cast("list[Any]", item) if isinstance(item, list) else []
    return isinstance(item, bytes) or (len(pair) == 2 and type(pair[0]) is int)


def _below(kind: int, items: Sequence[Reference]) -> list[bytes]:
    """Child nodes of a tree node."""
    return [item for item in items if isinstance(item, bytes)] if kind == TREE else []


def _common(a: Sequence[Reference], b: Sequence[Reference]) -> int:
    return next(
        (n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def _message(value: Any) -> dict[str, Any]:
    """Fields of a stored message, or `{"unread": reason}` for any other value."""
    if isinstance(value, bytes):
        value = json.loads(value)
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
    if isinstance(value, ShownMessage):
        return value.fields
    if isinstance(value, Unread) and value.made_of is not None:
        return {"unread": f"a value of the type {value.type}, which is not loaded here"}
    return {"unread": value.type if isinstance(value, Unread) else "a value that is no message"}


def _read(
    store: RunStore, cursor: Cursor, earlier: int, references: Sequence[Reference]
) -> NewMessages:
    try:
        reader = read_values(cursor, store.cipher, PlainLoader(_message), shared=True)
        reader.load(references)
        return NewMessages(
            earlier, tuple(reader.value(reference) for reference in references), None
        )
    except (RefusedValue, *DAMAGED) as error:
        return NewMessages(earlier, (), str(error))
