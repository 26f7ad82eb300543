"""Reading of checkpoints: rows to LangGraph's tuples, any number at once.

All values that the rows refer to are fetched together. A value that must not be made into an object
(a type that is not allowed, bytes that do not match their hash) is refused with its thread and
checkpoint.

A checkpoint's manifest (see `hrm_agent.store.checkpoints.written_form`) has references in place of
values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import ormsgpack

from hrm_agent.errors import StoreError
from hrm_agent.store.database.cursors import Cursor
from hrm_agent.store.values.cipher import Cipher
from hrm_agent.store.values.damage import DAMAGED
from hrm_agent.store.values.refusals import RefusedValue
from hrm_agent.store.values.value_reader import NULL, Reference, ValueReader

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
        PendingWrite,
    )

__all__ = [
    "MEMORY",
    "ROW",
    "Channels",
    "CheckpointKey",
    "CheckpointOutline",
    "CheckpointRow",
    "StoreSnapshot",
    "conditions",
    "matches",
    "read_checkpoint",
    "read_manifest",
]

Channels = dict[str, tuple[Any, Reference]]
"""Version and reference by channel. The reference is None if the channel has no value."""


@dataclass(frozen=True, slots=True)
class CheckpointKey:
    """Thread, namespace and checkpoint of a config."""

    thread_id: str
    """LangGraph's thread id."""
    ns: str
    """Namespace of the subgraph. Empty for the outermost graph."""
    checkpoint_id: str | None
    """LangGraph's id of the checkpoint (None for the newest one)."""

    def config(self, checkpoint_id: str) -> RunnableConfig:
        """Config of another checkpoint in the same thread and namespace."""
        named = {
            "thread_id": self.thread_id,
            "checkpoint_ns": self.ns,
            "checkpoint_id": checkpoint_id,
        }
        return {"configurable": named}


def read_manifest(data: bytes) -> tuple[dict[str, Any], Channels]:
    """Own fields of a checkpoint, and its channels."""
    rest, channels = ormsgpack.unpackb(data)
    return rest, {name: (version, reference) for name, version, reference in channels}


def read_checkpoint(rest: dict[str, Any], channels: Channels, reader: ValueReader) -> Checkpoint:
    """Checkpoint whose references are loaded. A channel without a version was stored with a value
    only.
    """
    checkpoint: dict[str, Any] = {
        **rest,
        "channel_values": {
            name: reader.value(ref) for name, (_, ref) in channels.items() if ref is not None
        },
        "channel_versions": {
            name: version for name, (version, _) in channels.items() if version is not None
        },
    }
    return cast("Checkpoint", checkpoint)


ROW = "seq, thread_id, ns, id, parent_id, manifest, metadata"
MEMORY = "__memory__"
"""Prefix of the task id of writes that hold items for a LangGraph store, not values of channels."""
_FEW = 300
"""Number of checkpoints up to which writes are queried one by one. For more, all writes of their
threads are read.
"""
_NOTHING = [NULL, b""]
"""Reference of None."""


class CheckpointRow(NamedTuple):
    """Row of `checkpoints`."""

    seq: int
    """Number of the row, in the order of writing."""
    thread_id: str
    """LangGraph's thread id."""
    ns: str
    """Namespace of the subgraph. Empty for the outermost graph."""
    id: str
    """LangGraph's id of the checkpoint."""
    parent_id: str | None
    """Id of the previous checkpoint (None for the first)."""
    manifest: bytes
    """Packed checkpoint with references instead of values. It is encrypted in an encrypted
    store.
    """
    metadata: bytes
    """Packed metadata of LangGraph. It is encrypted in an encrypted store."""

    @property
    def place(self) -> CheckpointKey:
        return CheckpointKey(self.thread_id, self.ns, self.id)


class CheckpointOutline(NamedTuple):
    """Contents of LangGraph's `CheckpointTuple`, without LangGraph. Its values are made by the
    reader's loader.
    """

    config: RunnableConfig
    """Config that names the checkpoint."""
    checkpoint: Checkpoint
    """Channel values, channel versions, id and timestamp."""
    metadata: CheckpointMetadata
    """Metadata, such as source and step."""
    parent_config: RunnableConfig | None
    """Config that names the previous checkpoint (None for the first)."""
    pending_writes: list[PendingWrite]
    """Later writes as (task, channel, value)."""


class StoreSnapshot:
    """Read access to checkpoints in one snapshot of the store."""

    def __init__(
        self,
        cursor: Cursor,
        reader: ValueReader,
        cipher: Cipher,
        remember: Callable[[tuple[str, str, str], Channels], None],
    ) -> None:
        self._cursor = cursor
        self._reader = reader
        self._cipher = cipher
        self._remember = remember

    def tuples(self, rows: Sequence[CheckpointRow]) -> list[CheckpointTuple]:
        """LangGraph's tuples of `rows`. Raises `StoreError`, which names thread and checkpoint, for
        values that must not be read.
        """
        # an import of most of a second, which readers of outlines do not need
        from langgraph.checkpoint.base import CheckpointTuple

        return [CheckpointTuple(*found) for found in self.outlines(rows)]

    def outlines(
        self, rows: Sequence[CheckpointRow], wanted: Callable[[str], bool] = lambda _: True
    ) -> list[CheckpointOutline]:
        """Outlines of `rows`, without LangGraph. Only channels that are `wanted` have values.
        Writes to other channels have None.

        Raises `StoreError`, which names thread and checkpoint, for values that must not be read.
        """
        place = rows[0].place if rows else None
        try:
            manifests = [
                _only(read_manifest(self._cipher.open(row.manifest, *row[1:4])), wanted)
                for row in rows
            ]
            writes = self._writes(rows, wanted)
            references = [
                ref for _, channels in manifests for _, ref in channels.values() if ref is not None
            ]
            self._reader.load(
                references + [write[-1] for held in writes.values() for write in held]
            )
            found: list[CheckpointOutline] = []
            for row, (rest, channels) in zip(rows, manifests, strict=True):
                place = row.place
                self._remember((row.thread_id, row.ns, row.id), channels)
                checkpoint = read_checkpoint(rest, channels, self._reader)
                pending = [
                    (task, channel, self._reader.value(ref))
                    for task, channel, ref in writes.get(row[1:4], ())
                ]
                parent = place.config(row.parent_id) if row.parent_id else None
                metadata = cast("CheckpointMetadata", self.metadata(row))
                found.append(
                    CheckpointOutline(place.config(row.id), checkpoint, metadata, parent, pending)
                )
            return found
        except (RefusedValue, *DAMAGED) as error:
            raise _forged(place, error) from error

    def metadata(self, row: CheckpointRow) -> dict[str, Any]:
        return ormsgpack.unpackb(self._cipher.open(row.metadata, *row[1:4], "metadata"))

    def _writes(
        self, rows: Sequence[CheckpointRow], wanted: Callable[[str], bool]
    ) -> dict[tuple[str, str, str], Sequence[tuple[str, str, Any]]]:
        """Task, channel and reference of the pending writes of each checkpoint, in LangGraph's
        order.
        """
        query = (
            "SELECT thread_id, ns, checkpoint_id, task_id, slot, task_path, data FROM writes WHERE"
            " thread_id = ?"
        )
        if len(rows) <= _FEW:
            one = f"{query} AND ns = ? AND checkpoint_id = ?"
            found = [
                write for row in rows for write in self._cursor.execute(one, row[1:4]).fetchall()
            ]
        else:
            threads = dict.fromkeys(row.thread_id for row in rows)
            found = [
                write
                for thread in threads
                for write in self._cursor.execute(query, (thread,)).fetchall()
            ]
        held: dict[tuple[str, str, str], list[tuple[tuple[str, str, int], str, Any]]] = {}
        asked_for = {row[1:4] for row in rows}
        for *place, task_id, slot, task_path, data in found:
            here = cast("tuple[str, str, str]", tuple(place))
            if here not in asked_for or task_id.startswith(MEMORY):
                continue
            for index, channel, reference in ormsgpack.unpackb(
                self._cipher.open(data, *here, task_id, str(slot))
            ):
                shown = reference if wanted(channel) else _NOTHING
                held.setdefault(here, []).append(((task_path, task_id, index), channel, shown))
        return {
            place: [
                (key[1], channel, reference)
                for key, channel, reference in sorted(writes, key=lambda w: w[0])
            ]
            for place, writes in held.items()
        }


def _only(
    manifest: tuple[dict[str, Any], Channels], wanted: Callable[[str], bool]
) -> tuple[dict[str, Any], Channels]:
    rest, channels = manifest
    return rest, {name: found for name, found in channels.items() if wanted(name)}


def _forged(place: CheckpointKey | None, error: Exception) -> StoreError:
    where = (
        f"Thread {place.thread_id!r}, checkpoint {place.checkpoint_id}" if place else "A checkpoint"
    )
    if isinstance(error, RecursionError):
        return StoreError(
            f"{where}: a value that is nested too deeply to be read here. It was not read.",
            "Read it where less of Python's stack is used, or raise sys.setrecursionlimit.",
        )
    return StoreError(
        f"{where}: {error}. It was not read.",
        "If it is a type of your own, allow it: --allow package.module:Type, or --graph with the"
        " graph that declares it; in a program open_store(..., allow=['package.module:Type']). Otherwise"
        " the file was damaged or changed: `hrm-agent store verify`.",
    )


def conditions(
    config: RunnableConfig | None, before: RunnableConfig | None
) -> tuple[str, list[Any]]:
    """WHERE clause of a listing, and its values."""
    named: dict[str, Any] = dict((config or {}).get("configurable", {}))
    columns = {"thread_id": "thread_id", "checkpoint_ns": "ns", "checkpoint_id": "id"}
    given = {
        column: str(named[name]) for name, column in columns.items() if named.get(name) is not None
    }
    clauses = [f"{column} = ?" for column in given]
    values = list(given.values())
    # LangGraph's replay gives nothing but an id in `before`
    earlier = (before or {}).get("configurable", {}).get("checkpoint_id")
    if earlier:
        clauses.append("id < ?")
        values.append(earlier)
    return " AND ".join(clauses) or "1 = 1", values


def matches(metadata: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """True if a checkpoint's metadata has all wanted values."""
    return all(name in metadata and metadata[name] == value for name, value in wanted.items())
