"""Readers of checkpoint values for untrusted stores: no object is made, and nothing is imported.

For display, a message becomes its fields. A value of any other type becomes the type's name and its
parts.

Outlines show the course of a run, not its state. They are read without LangChain and LangGraph.
Plain values, sets, sent tasks and questions are read. Messages are only recognised. A value of any
other type raises `NeedsItsType`. The caller then reads the checkpoints by `store.checkpointer`,
which knows types, and refuses those that are not allowed.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Any, NamedTuple, cast

from hrm_agent.errors import StoreError
from hrm_agent.langgraph_format import is_internal, unstored_channels
from hrm_agent.store.database.cursors import Cursor
from hrm_agent.store.run_store import RunStore
from hrm_agent.store.values.checkpoint_reader import (
    ROW,
    CheckpointOutline,
    CheckpointRow,
    StoreSnapshot,
)
from hrm_agent.store.values.damage import DAMAGED
from hrm_agent.store.values.manifests import read_manifest
from hrm_agent.store.values.plain_reader import (
    MESSAGE_FIELDS,
    TYPED,
    NeedsItsType,
    Packed,
    is_json,
    unpacked,
)
from hrm_agent.store.values.refusals import RefusedValue
from hrm_agent.store.values.value_reader import read_values

__all__ = [
    "HIDDEN",
    "SNAPSHOT",
    "CheckpointLink",
    "SentTask",
    "ShownMessage",
    "StoredQuestion",
    "Unread",
    "Written",
    "checkpoint_links",
    "newest_plain_channels",
    "outlines",
    "outlines_of",
    "rows_around",
    "shown_channels",
]

HIDDEN = object()
"""Placeholder for a message, or for a value that an edit has put in place of another."""
_SET, _SEND, _KEYWORDS, _MODEL = 0, 1, 2, 5
"""Codes of LangGraph's serializer: values made of one argument, of several, of keyword arguments,
and pydantic models.

A value that it would return changed has a code of this package (`TYPED`), with the same parts and
the way to build it.
"""
SNAPSHOT = 7
"""LangGraph's code of a snapshot of a `DeltaChannel`."""
_MODELS, _NAMED = (_MODEL, TYPED), (_KEYWORDS, TYPED)


class SentTask(NamedTuple):
    """Task that `Send` asks for."""

    node: str
    """Name of its node."""


class StoredQuestion(NamedTuple):
    """Interrupt of a graph."""

    id: str
    """LangGraph's id of the interrupt."""
    value: Any
    """Question as a plain value."""


class _Outlined:
    """Loader (`hrm_agent.store.values.value_reader`) of the values of checkpoints."""

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        kind, content = data
        if kind == "null":
            return None
        if kind not in ("bytes", "msgpack"):
            raise NeedsItsType
        return content if kind == "bytes" else _outlined(unpacked(content))


class _Plain:
    """Loader of values that JSON can represent."""

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        value = unpacked(data[1]) if data[0] == "msgpack" else None
        if data[0] not in ("msgpack", "null") or not is_json(value):
            raise NeedsItsType
        return value


def outlines(store: RunStore, thread_id: str) -> list[CheckpointOutline]:
    """Outlines of the checkpoints of a thread and its subgraphs, newest first. Raises
    `NeedsItsType`.
    """
    query = f"SELECT {ROW} FROM checkpoints WHERE thread_id = ? ORDER BY id DESC, seq DESC"
    with store.database.read() as cursor:
        rows = [CheckpointRow(*row) for row in cursor.execute(query, (thread_id,)).fetchall()]
        reader = read_values(cursor, store.cipher, _Outlined(), shared=True)
        return StoreSnapshot(cursor, reader, store.cipher, lambda *_: None).outlines(rows)


def newest_plain_channels(
    store: RunStore, thread_id: str, names: Collection[str]
) -> dict[str, Any]:
    """Newest values of some channels of a thread (empty without a checkpoint). Raises
    `NeedsItsType`.
    """
    query = f"SELECT {ROW} FROM checkpoints WHERE thread_id = ? AND ns = ? ORDER BY id DESC LIMIT 1"
    with store.database.read() as cursor:
        found = cursor.execute(query, (thread_id, "")).fetchone()
        if found is None:
            return {}
        row = CheckpointRow(*found)
        try:
            _, channels = read_manifest(store.cipher.open(row.manifest, *row[1:4]))
            if any(name in names and ref is None for name, (_, ref) in channels.items()):
                raise NeedsItsType  # its value may depend on earlier checkpoints
            wanted = {name: ref for name, (_, ref) in channels.items() if name in names}
            reader = read_values(cursor, store.cipher, _Plain(), shared=False)
            reader.load(wanted.values())
            return {name: reader.value(ref) for name, ref in wanted.items()}
        except (RefusedValue, *DAMAGED) as error:  # reading it with its types reports the error
            raise NeedsItsType from error


def _outlined(value: Any) -> Any:
    """Outline of a value, at all depths."""
    if isinstance(value, Packed):
        return _of_type(value.code, unpacked(value.data))
    if isinstance(value, list):
        return [_outlined(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {name: _outlined(item) for name, item in cast("dict[Any, Any]", value).items()}
    return value


def _of_type(code: int, made: Any) -> Any:
    match code, made:
        case (_, _) if code == SNAPSHOT:
            return _outlined(made)
        case (_, ["builtins", "tuple", [*items], _]) if code == TYPED:
            return tuple(map(_outlined, items))
        case (_, [str(module), str(name), dict(), _, *_]) if (
            code in _MODELS
            and (
                module,
                name,
            )
            in MESSAGE_FIELDS
        ):
            _outlined(made[2])  # its contents must be of known types too
            return HIDDEN
        case (_, ["builtins", "set", [*items], *_]) if (
            code in (_SET, TYPED) and is_json(items) and _are_keys(items)
        ):
            return set(items)
        case (_, ["langgraph.types", "Send", [str(node), argument], *_]) if code in (_SEND, TYPED):
            _outlined(argument)
            return SentTask(node)
        case (
            _,
            ["langgraph.types", "Interrupt", {"id": str(id_), "value": asked, **more}, *_],
        ) if code in _NAMED:
            if is_json([asked, more]):
                return StoredQuestion(id_, asked)
        case (_, ["langgraph.types", "Overwrite", dict(), *_]) if code in _NAMED:
            _outlined(made[2])
            return HIDDEN
        case _:
            pass
    raise NeedsItsType


def _are_keys(items: list[Any]) -> bool:
    return not any(isinstance(item, (list, dict)) for item in items)


_DEEPEST = 60


class ShownMessage(NamedTuple):
    """LangChain message."""

    fields: dict[str, Any]
    """Fields of the message, as stored."""


class Unread(NamedTuple):
    """Value of a type that is not loaded."""

    type: str
    """`package.module.Type`, as the store names it."""
    made_of: Any
    """Parts of the value, as plain values."""


class Written(NamedTuple):
    """Parts of a channel's value. Only the graph's reducer could fold them, and the graph is not
    loaded.
    """

    snapshot: Any
    """Newest recorded value (None if no value is recorded)."""
    writes: list[Any]
    """Later writes, in order."""


class _Shown:
    """Loader (`hrm_agent.store.values.value_reader`) of values for display."""

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        kind, content = data
        if kind == "null":
            return None
        if kind in ("bytes", "bytearray"):
            return Unread(kind, f"{len(content)} bytes")
        return _shown(_unpacked(content), 0) if kind == "msgpack" else Unread(kind, None)


def _unpacked(content: bytes) -> Any:
    try:
        return unpacked(content)
    except NeedsItsType:
        return Unread("a value that cannot be read", None)


def _shown(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        return Unread("a value that is nested more deeply", None)
    if isinstance(value, Packed):
        return _made(value.code, _unpacked(value.data), depth)
    if type(value) is list:
        return [_shown(item, depth + 1) for item in cast("list[Any]", value)]
    if type(value) is dict:
        return {
            str(name): _shown(item, depth + 1)
            for name, item in cast("dict[Any, Any]", value).items()
        }
    return value


def _made(code: int, made: Any, depth: int) -> Any:
    """Displayed form of a typed value. LangGraph's serializer names a module, an attribute of it,
    and arguments.
    """
    if code == SNAPSHOT:
        return _shown(made, depth)
    match made:
        case ["langgraph.types", "Send", [str(node), *_]]:
            return SentTask(node)
        case ["langgraph.types", "Interrupt", {"id": str(id_), "value": asked}, *_]:
            return StoredQuestion(id_, _shown(asked, depth + 1))
        case ["builtins", "str", [bytes(text)], *_]:
            return text.decode("utf-8", "surrogatepass")
        case ["builtins", "set" | "frozenset" | "tuple" as name, [*items], *_]:
            shown = [_shown(item, depth + 1) for item in items]
            return (
                shown
                if name == "tuple" or not all(isinstance(item, str) for item in shown)
                else set(shown)
            )
        case [str(module), str(), dict() as fields, *_] if module.startswith(
            "langchain_core.messages."
        ):
            return ShownMessage(
                {str(name): _shown(item, depth + 1) for name, item in fields.items()}
            )
        case [str(module), str(name), arguments, *_]:
            return Unread(f"{module}.{name}", _shown(arguments, depth + 1))
        case _:
            return Unread(f"a value of kind {code}", None)


class CheckpointLink(NamedTuple):
    """Ids of a checkpoint of the outermost graph and its parent."""

    id: str
    """LangGraph's id."""
    parent: str | None
    """Id of the previous checkpoint (None for the first)."""


def checkpoint_links(store: RunStore, thread_id: str) -> list[CheckpointLink]:
    """Checkpoints of a thread's outermost graph, oldest first, without reading their values."""
    query = "SELECT id, parent_id FROM checkpoints WHERE thread_id = ? AND ns = ? ORDER BY id"
    with store.database.read() as cursor:
        rows = cursor.execute(query, (thread_id, "")).fetchall()
    return [
        CheckpointLink(str(id_), None if parent is None else str(parent)) for id_, parent in rows
    ]


def rows_around(
    store: RunStore, thread_id: str, ids: Collection[str], inside: Collection[str]
) -> list[CheckpointRow]:
    """Rows of outermost checkpoints, and of subgraphs' checkpoints in the steps from the
    checkpoints `inside`.
    """
    found: list[CheckpointRow] = []
    with store.database.read() as cursor:
        one = f"SELECT {ROW} FROM checkpoints WHERE thread_id = ? AND ns = ? AND id = ?"
        for id_ in ids:
            found += [
                CheckpointRow(*row) for row in cursor.execute(one, (thread_id, "", id_)).fetchall()
            ]
        nested = "SELECT ns, id, metadata FROM checkpoints WHERE thread_id = ? AND ns <> ?"
        snapshot = StoreSnapshot(cursor, _reader(store, cursor), store.cipher, lambda *_: None)
        for ns, id_, metadata in cursor.execute(nested, (thread_id, "")).fetchall():
            with suppress(StoreError, *DAMAGED):  # skip a damaged one, or one without parents
                facts = snapshot.metadata(CheckpointRow(0, thread_id, ns, id_, None, b"", metadata))
                if (facts.get("parents") or {}).get("") in inside:
                    found += [
                        CheckpointRow(*row)
                        for row in cursor.execute(one, (thread_id, ns, id_)).fetchall()
                    ]
    return found


def outlines_of(store: RunStore, rows: list[CheckpointRow]) -> list[CheckpointOutline]:
    """Checkpoints without the state. They only have LangGraph's internal channels, which show what
    runs next.
    """
    with store.database.read() as cursor:
        snapshot = StoreSnapshot(cursor, _reader(store, cursor), store.cipher, lambda *_: None)
        return snapshot.outlines(rows, is_internal)


def shown_channels(
    store: RunStore,
    thread_id: str,
    checkpoint_id: str = "",
    namespace: str = "",
    names: Collection[str] = (),
) -> CheckpointOutline | None:
    """Checkpoint with its values, or with the values of some channels (None if missing). By default
    it is the newest.

    A channel whose value is not in the checkpoint is `Written`. Raises `StoreError` for a damaged
    checkpoint.
    """
    query = f"SELECT {ROW} FROM checkpoints WHERE thread_id = ? AND ns = ?"
    values = [thread_id, namespace]
    if checkpoint_id:
        query, values = f"{query} AND id = ?", [*values, checkpoint_id]
    with store.database.read() as cursor:
        row = cursor.execute(f"{query} ORDER BY id DESC LIMIT 1", values).fetchone()
        if row is None:
            return None
        snapshot = StoreSnapshot(cursor, _reader(store, cursor), store.cipher, lambda *_: None)
        found = snapshot.outlines([CheckpointRow(*row)], lambda name: not names or name in names)[0]
        absent = [name for name in unstored_channels(found) if not names or name in names]
        found.checkpoint["channel_values"].update(_written(cursor, snapshot, found, absent))
        return found


def _written(
    cursor: Cursor, snapshot: StoreSnapshot, found: CheckpointOutline, names: Collection[str]
) -> dict[str, Written]:
    """Parts of channels' values: the writes of ancestors, back to the newest value on record."""
    one = f"SELECT {ROW} FROM checkpoints WHERE thread_id = ? AND ns = ? AND id = ?"
    written = {name: Written(None, []) for name in names}
    open_ = set(names)
    while open_ and found.parent_config is not None:
        named: Any = found.parent_config.get("configurable", {})
        place = (named["thread_id"], named["checkpoint_ns"], named["checkpoint_id"])
        row = cursor.execute(one, place).fetchone()
        if row is None:
            break
        found = snapshot.outlines([CheckpointRow(*row)], open_.__contains__)[0]
        for _, channel, value in reversed(found.pending_writes):
            if channel in open_:
                written[channel].writes.insert(0, value)
        for name in open_ & found.checkpoint["channel_values"].keys():
            written[name] = Written(found.checkpoint["channel_values"][name], written[name].writes)
        open_ -= found.checkpoint["channel_values"].keys()
    return written


def _reader(store: RunStore, cursor: Any) -> Any:
    return read_values(cursor, store.cipher, _Shown(), shared=True)
