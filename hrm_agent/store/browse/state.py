"""Readers of checkpoint values without making objects, so also of stores of unknown origin.

For display, a message becomes its fields. A value of any other type becomes the type's name and its
parts (`hrm_agent.store.values.plain_reader`).

Outlines show the course of a run, not its state. They are read without LangChain and LangGraph.
Plain values, sets, sent tasks and questions are read. Messages are only recognised. A value of any
other type raises `NeedsItsType`. The caller then reads the checkpoints by `store.checkpointer`,
which knows types, and refuses types that are not allowed.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Any, NamedTuple, cast

from hrm_agent.errors import StoreError
from hrm_agent.langgraph_format import is_internal, unstored_channels
from hrm_agent.store.checkpoints.reader import (
    ROW,
    CheckpointOutline,
    CheckpointRow,
    StoreSnapshot,
    read_manifest,
)
from hrm_agent.store.database.cursors import Cursor
from hrm_agent.store.run_store import RunStore
from hrm_agent.store.values.damage import DAMAGED
from hrm_agent.store.values.plain_reader import (
    NeedsItsType,
    PlainLoader,
    SentTask,
    ShownMessage,
    StoredQuestion,
    Unread,
    is_json,
)
from hrm_agent.store.values.refusals import RefusedValue
from hrm_agent.store.values.value_reader import read_values

__all__ = [
    "HIDDEN",
    "CheckpointLink",
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


def outlines(store: RunStore, thread_id: str) -> list[CheckpointOutline]:
    """Outlines of the checkpoints of a thread and its subgraphs, newest first. Raises
    `NeedsItsType`.
    """
    query = f"SELECT {ROW} FROM checkpoints WHERE thread_id = ? ORDER BY id DESC, seq DESC"
    with store.database.read() as cursor:
        rows = [CheckpointRow(*row) for row in cursor.execute(query, (thread_id,)).fetchall()]
        reader = read_values(cursor, store.cipher, PlainLoader(_outline), shared=True)
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
            reader = read_values(cursor, store.cipher, PlainLoader(_json), shared=False)
            reader.load(wanted.values())
            return {name: reader.value(ref) for name, ref in wanted.items()}
        except (RefusedValue, *DAMAGED) as error:  # a reader with types reports the error
            raise NeedsItsType from error


def _outline(value: Any) -> Any:
    """Outline of a decoded value. Its parts must be of known types too."""
    match value:
        case ShownMessage(made_of) | Unread("langgraph.types.Overwrite", made_of):
            _outline(made_of)
            return HIDDEN
        case Unread():
            raise NeedsItsType
        case SentTask(node, argument):
            _outline(argument)
            return SentTask(node)
        case StoredQuestion():
            return value._replace(value=_json(value.value))
        case list() | tuple() | set():
            parts = cast("list[Any]", value)
            return type(parts)(map(_outline, parts))
        case dict():
            items = cast("dict[Any, Any]", value).items()
            return {name: _outline(item) for name, item in items}
        case _:
            return value


def _json(value: Any) -> Any:
    if not is_json(value):
        raise NeedsItsType
    return value


def _shown(value: Any) -> Any:
    return Unread("bytes", f"{len(value)} bytes") if isinstance(value, bytes) else value


class Written(NamedTuple):
    """Parts of a channel's value. Only the graph's reducer could fold them, and the graph is not
    loaded.
    """

    snapshot: Any
    """Newest recorded value (None if no value is recorded)."""
    writes: list[Any]
    """Later writes, in order."""


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
        query = f"{query} AND id = ?"
        values = [*values, checkpoint_id]
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
    return read_values(cursor, store.cipher, PlainLoader(_shown), shared=True)
