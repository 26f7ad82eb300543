"""LangGraph's checkpoints in the run store: a `BaseCheckpointSaver` for sync and async graphs.

One transaction writes a checkpoint, its new values, and the pending writes that led to it. A run
may continue from a checkpoint that is no longer the newest of its thread only if it asked for it by
id. Otherwise it is a second run on the same thread: LangGraph would fork the thread silently, the
store refuses.

LangGraph takes the highest id for the newest checkpoint, and ids begin with the time. A process
that reads a thread makes higher ids from then on (`langgraph_format.continue_ids_after`), whatever
its own clock shows. A checkpoint whose id is still lower than the newest one's would be lost, so it
is refused with the reason.

A manifest has a checkpoint's own fields and one reference for each channel. A channel with its
parent's version has its parent's reference: its value is neither serialised nor stored again.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import (
    AsyncIterator,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeVar, cast

import ormsgpack
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    EXCLUDED_METADATA_KEYS,
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.base.id import uuid6
from langgraph.pregel import Pregel

from hrm_agent.basics.bounded import remember
from hrm_agent.errors import RunError, StoreError, UnstorableError
from hrm_agent.langgraph_format import (
    ERROR,
    ERROR_SOURCE,
    collect_declared_types,
    continue_ids_after,
    ticks_of,
)
from hrm_agent.store.database.committer import committed, finished
from hrm_agent.store.database.cursors import Cursor, answered
from hrm_agent.store.database.database import Database
from hrm_agent.store.threads import (
    copy_rows,
    delete_runs_checkpoints,
    delete_threads,
    head_of,
    keep_newest,
    lineage,
    touch_thread,
)
from hrm_agent.store.values.blobs import Blobs
from hrm_agent.store.values.checkpoint_reader import (
    MEMORY,
    ROW,
    Channels,
    CheckpointKey,
    CheckpointRow,
    StoreSnapshot,
    conditions,
    matches,
)
from hrm_agent.store.values.content_addressed import CHANNEL_BYTES, ValueWriter
from hrm_agent.store.values.refusals import RefusedValue, Unstorable
from hrm_agent.store.values.serializer import StrictSerializer, declared_types
from hrm_agent.store.values.value_reader import Reference

__all__ = [
    "CheckpointNotes",
    "StoreSaver",
    "StoredItem",
    "manifest_of",
    "merged_writes",
    "place_of",
    "public_metadata",
    "refuse_set_back_clock",
    "refuse_stranger",
    "refusing",
    "slots_of",
]

_EXCLUDED = frozenset(EXCLUDED_METADATA_KEYS)
REGULAR = 0
"""Slot of a task's ordinary writes. Special ones (an error, an interrupt, its answer) have one slot
each, below 0.
"""


def place_of(config: RunnableConfig) -> CheckpointKey:
    """Thread, namespace and checkpoint of a config."""
    named: Mapping[str, Any] = config.get("configurable", {})
    checkpoint_id = named.get("checkpoint_id")
    return CheckpointKey(
        str(named["thread_id"]),
        str(named.get("checkpoint_ns") or ""),
        str(checkpoint_id or "") or None,
    )


def public_metadata(config: RunnableConfig, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata of a checkpoint to store: LangGraph's own, and the run-level values in
    `config["metadata"]`.

    LangChain copies any scalars in `configurable` into that metadata. Callers keep keys and user
    names there, so none of them is stored.
    """
    configurable: Mapping[str, Any] = config.get("configurable", {})
    kept: dict[str, Any] = {
        name: value
        for name, value in (config.get("metadata") or {}).items()
        if isinstance(value, (str, int, float, bool))
        and name not in configurable
        and name not in _EXCLUDED
        and not name.startswith("__")
    }
    kept.update(metadata)
    kept.pop("writes", None)
    return kept


_HINT = (
    "Declare the type in the graph's state, or name it: --allow package.module:Type, in a program"
    " open_store(..., allow=['package.module:Type']). A graph that was compiled before its store"
    " was opened takes store.checkpointer.allowing(graph)."
)


@contextmanager
def refusing(place: CheckpointKey) -> Generator[None]:
    """Raise `StoreError` for a type that is not allowed, `UnstorableError` for a value that would
    change.
    """
    try:
        yield
    except RefusedValue as error:
        message = f"Thread {place.thread_id!r} holds {error}. Nothing was written."
        if isinstance(error, Unstorable):
            raise UnstorableError(
                message,
                "Keep it out of the graph's state, or in a plainer form (a text, a list, a dict, a"
                " model of pydantic).",
            ) from error
        raise StoreError(message, _HINT) from error


def manifest_of(
    checkpoint: Checkpoint, writer: ValueWriter, new_versions: ChannelVersions, parent: Channels
) -> tuple[bytes, Channels]:
    """Stored form of a checkpoint, and the references of its channels."""
    channels: Channels = {}
    values = checkpoint["channel_values"]
    versions = checkpoint["channel_versions"]
    for name in {**versions, **values}:
        version, before = versions.get(name), parent.get(name)
        if name not in values:
            channels[name] = (version, None)
        elif before and before[0] == version and before[1] and name not in new_versions:
            channels[name] = (version, before[1])
        else:
            channels[name] = (version, _reference(name, values[name], writer))
    rest = {
        name: value
        for name, value in checkpoint.items()
        if name not in ("channel_values", "channel_versions")
    }
    packed = ormsgpack.packb([rest, [[name, *entry] for name, entry in channels.items()]])
    return packed, channels


def slots_of(writes: Sequence[tuple[str, Any]], writer: ValueWriter) -> dict[int, list[list[Any]]]:
    """Writes as `[index, channel, reference]`, by slot.

    Ordinary writes of a task that failed or was cancelled are left out. A node writes to the state
    before its conditional edges run, and LangGraph considers a task with any recorded ordinary
    write as ended. A run that was cancelled in between, and resumed, would stop there without an
    error. So the task runs again. If a node of the graph handles the error, it continues from the
    writes, and they are kept.
    """
    slots: dict[int, list[list[Any]]] = {}
    channels = {channel for channel, _ in writes}
    again = ERROR in channels and ERROR_SOURCE not in channels
    for position, (channel, value) in enumerate(writes):
        index = WRITES_IDX_MAP.get(channel, position)
        if again and index >= REGULAR:
            continue
        if channel == ERROR and isinstance(value, BaseException):
            value = repr(value)  # as in LangGraph's savers
        slots.setdefault(min(index, REGULAR), []).append(
            [index, channel, _reference(channel, value, writer)]
        )
    return slots


def _reference(channel: str, value: Any, writer: ValueWriter) -> Reference:
    try:
        return writer.reference(value, CHANNEL_BYTES)
    except RefusedValue as error:
        error.within(channel)
        raise


def merged_writes(stored: bytes, given: list[list[Any]]) -> bytes:
    """Merge the ordinary writes of a task with those stored before. Stored ones are kept for their
    index.
    """
    held: list[list[Any]] = ormsgpack.unpackb(stored)
    taken = {index for index, *_ in held}
    return ormsgpack.packb(
        sorted(held + [write for write in given if write[0] not in taken], key=lambda w: w[0])
    )


_TICKS, _EPOCH_TICKS = 10_000_000, 0x01B21DD213814000
"""Ticks of a UUID's time: per second, and from its epoch in 1582 to 1970."""


def refuse_stranger(
    database: Database, cursor: Cursor, place: CheckpointKey, new: str, *, chosen: bool
) -> None:
    """Raise `RunError` if a checkpoint of the outermost graph does not follow the newest one.

    `chosen`: its parent was asked for by id, so a branch may begin there.
    """
    newest = head_of(database, cursor, place.thread_id)
    if newest > new:
        refuse_set_back_clock(place.thread_id, newest)
    if chosen or newest in ("", new, place.checkpoint_id):
        return
    raise RunError(
        f"Thread {place.thread_id!r} was continued by another run: its newest checkpoint is"
        f" {newest}, but this run started from {place.checkpoint_id or 'no checkpoint'}. Its"
        " checkpoint was not written.",
        "Run one at a time on a thread, or fork it: `hrm-agent fork --help`.",
    )


def refuse_set_back_clock(thread_id: str, newest: str) -> None:
    """Raise `RunError` if this machine's clock is behind the checkpoint `newest`."""
    made_at = (ticks_of(newest) - _EPOCH_TICKS) / _TICKS
    ahead = made_at - time.time()
    if ahead > 0:
        raise RunError(
            f"The clock of this machine stands {ahead:,.1f} seconds before the newest checkpoint of"
            f" thread {thread_id!r} ({newest}, made at"
            f" {datetime.fromtimestamp(made_at):%Y-%m-%d %H:%M:%S}), so that the next one would be"
            " taken for an older one. It was not written.",
            "Resume the run: a new process reads the thread first, and goes on after its ids.",
        )


K = TypeVar("K")
V = TypeVar("V")
_HIGHEST_OF_THREAD = (
    "(SELECT max(n.id) FROM checkpoints n WHERE n.thread_id = checkpoints.thread_id AND n.ns = '')"
)


class StoredItem(NamedTuple):
    """Item that a step put into a LangGraph store."""

    namespace: tuple[str, ...]
    """Namespace in the store."""
    key: str
    """Key in the namespace."""
    value: dict[str, Any] | None
    """Value (None if the item was deleted)."""
    searched: Literal[False] | list[str] | None
    """`index` argument of `put`: the fields that can be searched."""
    updated_at: float
    """Unix time in seconds."""


class CheckpointNotes(Protocol):
    """Function that returns further metadata for a checkpoint, from its own metadata and its
    parent's id (None for the first).
    """

    def __call__(self, metadata: CheckpointMetadata, parent: str | None) -> Mapping[str, Any]: ...


class StoreSaver(BaseCheckpointSaver[Any]):
    """LangGraph checkpointer over the store."""

    def __init__(
        self, database: Database, blobs: Blobs, allow: Iterable[tuple[str, ...]] = ()
    ) -> None:
        serializer = StrictSerializer(allow)
        super().__init__(serde=serializer)
        collect_declared_types()
        self._database, self.blobs = database, blobs
        self._parents: dict[tuple[str, str, str], tuple[str, Channels]] = {}
        """Epoch and channels of the newest checkpoints that this process wrote or read, by thread,
        namespace and id. In another epoch their values may have been collected.
        """
        self._chosen: dict[tuple[str, str], None] = {}
        """Threads and checkpoints that were asked for by id. A run may branch off there."""
        self._new: dict[str, None] = {}
        """Threads that were found empty. The process that asked is about to start them."""
        self._own: dict[tuple[str, str, str], None] = {}
        """Checkpoints that this process has written. Writes of its tasks to them are new."""
        self._slots: dict[tuple[str, str, str, str, int], None] = {}
        """Slots that tasks have written."""
        self._highest = ""
        """Highest id that was read. LangGraph makes higher ones from then on."""
        self._touched: dict[str, tuple[str, float]] = {}
        """Epoch and Unix time of the last note that a thread was written to, by thread."""
        self.notes: CheckpointNotes | None = None
        """Function for further metadata of the outermost graph's checkpoints."""

    def noting(self, notes: CheckpointNotes) -> Self:
        """Copy of this checkpointer for one invocation. It adds `notes` to the metadata of
        checkpoints.
        """
        clone = copy.copy(self)
        clone.notes = notes
        return clone

    def allowing(self, graph: Pregel[Any, Any, Any, Any]) -> StoreSaver:
        """Copy of this checkpointer that also reads the types declared by the state of `graph`.

        A graph that is compiled with this checkpointer does that by itself. A graph that gets the
        checkpointer later does not.
        """
        return self.with_allowlist(declared_types(graph))

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> StoreSaver:
        clone = copy.copy(self)
        clone.serde = self.serializer.with_msgpack_allowlist(extra_allowlist)
        return clone

    @property
    def serializer(self) -> StrictSerializer:
        return cast(StrictSerializer, self.serde)

    @property
    def url(self) -> str:
        """URL of its store, without a password."""
        return self._database.url

    # writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self._put(config, checkpoint, metadata, new_versions, waits=True).result()

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await committed(self._put(config, checkpoint, metadata, new_versions))

    def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
        *,
        waits: bool = False,
    ) -> Future[RunnableConfig]:
        place, cipher = self._noted(place_of(config)), self.blobs.cipher
        facts = self._facts(place, config, metadata)
        here = (place.thread_id, place.ns, checkpoint["id"])
        remember(self._own, here, None)
        parent = self._parents.get((place.thread_id, place.ns, place.checkpoint_id or ""), ("", {}))
        sealed = cipher.seal(ormsgpack.packb(facts, default=str), *here, "metadata")
        self._may_follow(place, facts, checkpoint["id"])
        now, written, touched = time.time(), list[tuple[str, Channels]](), list[tuple[str, float]]()

        def encode(writer: ValueWriter) -> tuple[bytes, Channels]:
            with refusing(place):
                return manifest_of(
                    checkpoint, writer, new_versions, parent[1] if parent[0] == writer.epoch else {}
                )

        def insert(cursor: Cursor, encoded: tuple[bytes, Channels]) -> RunnableConfig:
            self._refuse_second_run(cursor, place, checkpoint["id"])
            manifest, channels = encoded
            cursor.execute(
                "INSERT INTO checkpoints (thread_id, ns, id, parent_id, run_id, manifest, metadata)"
                " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (thread_id, ns, id) DO UPDATE SET"
                " parent_id = excluded.parent_id, manifest = excluded.manifest, metadata ="
                " excluded.metadata",
                (
                    *here,
                    place.checkpoint_id,
                    str(facts["run_id"]) if facts.get("run_id") else None,
                    cipher.seal(manifest, *here),
                    sealed,
                ),
            )
            if self._is_due(place, now):
                touch_thread(cursor, place.thread_id, now)
                touched.append((self._database.epoch, now))
            written.append((self._database.epoch, channels))
            self._database.held.add_checkpoint(*here, place.checkpoint_id)
            if not place.ns and (head := self._database.heads.get(place.thread_id)) is not None:
                self._database.heads[place.thread_id] = max(head, checkpoint["id"])
            return place.config(checkpoint["id"])

        def done(error: BaseException | None) -> None:
            if error is None:
                remember(self._parents, here, written[-1])
                if touched:
                    remember(self._touched, place.thread_id, touched[-1])
            elif lease is not None:  # otherwise the waiting caller gets the error
                self._database.fence.stop(place.thread_id, lease, error)

        lease = None
        held = self._database.held.of(place.thread_id)
        if self._database.joins(held):
            lease = held.lease
            held.parents[place.ns, checkpoint["id"]] = place.checkpoint_id
            seconds = self._database.joined_seconds
            self.blobs.write_later(self.serializer, encode, insert, place.thread_id, done, seconds)
            return finished(place.config(checkpoint["id"]))
        future = self.blobs.write(self.serializer, encode, insert, place.thread_id, waits=waits)
        future.add_done_callback(lambda committed: done(committed.exception()))
        return future

    def _noted(self, place: CheckpointKey) -> CheckpointKey:
        if (held := self._database.held.of(place.thread_id)) is not None:
            held.namespaces.add(place.ns)
        return place

    def _is_due(self, place: CheckpointKey, now: float) -> bool:
        """True if the thread is to be noted as written to. That happens once per second, as the
        thread may have been deleted since.
        """
        epoch, before = self._touched.get(place.thread_id, ("", 0.0))
        return place.checkpoint_id is None or epoch != self._database.epoch or now - before >= 1.0

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        if (future := self._put_writes(config, writes, task_id, task_path)) is not None:
            future.result()

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        if (future := self._put_writes(config, writes, task_id, task_path)) is not None:
            await committed(future)

    def _put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> Future[None] | None:
        """Write ordinary writes with the checkpoint that follows. Errors and interrupts are written
        at once, as no checkpoint may follow them.
        """
        place = self._noted(place_of(config))
        key = (place.thread_id, place.ns, place.checkpoint_id or "", task_id)

        def encode(writer: ValueWriter) -> dict[int, list[list[Any]]]:
            with refusing(place):
                return slots_of(writes, writer)

        def insert(cursor: Cursor, slots: dict[int, list[list[Any]]]) -> None:
            for slot, given in slots.items():
                self._insert_slot(cursor, (*key, slot), task_path, given)

        if any(channel in WRITES_IDX_MAP for channel, _ in writes):
            return self.blobs.write(self.serializer, encode, insert, place.thread_id)
        held = self._database.held.of(place.thread_id)
        seconds = self._database.joined_seconds if self._database.joins(held) else None
        self.blobs.write_later(self.serializer, encode, insert, place.thread_id, seconds=seconds)
        return None

    def _insert_slot(
        self,
        cursor: Cursor,
        key: tuple[str, str, str, str, int],
        task_path: str,
        given: list[list[Any]],
    ) -> None:
        cipher, place = self.blobs.cipher, tuple(map(str, key))
        again = "DO NOTHING" if key[-1] == REGULAR else "DO UPDATE SET data = excluded.data"
        query = (
            "INSERT INTO writes (thread_id, ns, checkpoint_id, task_id, slot, task_path, data) "
            "VALUES (?, ?, ?, ?, ?, ?, ?) "
            f"ON CONFLICT (thread_id, ns, checkpoint_id, task_id, slot) {again} RETURNING 1"
        )
        new = (1,) if key[:3] in self._own and key not in self._slots else None
        remember(self._slots, key, None)
        if (
            answered(
                cursor, query, (*key, task_path, cipher.seal(ormsgpack.packb(given), *place)), new
            )
            is None
        ):
            where = "thread_id = ? AND ns = ? AND checkpoint_id = ? AND task_id = ? AND slot = ?"
            stored = cursor.execute(f"SELECT data FROM writes WHERE {where}", key).fetchone()[0]
            merged = merged_writes(cipher.open(stored, *place), given)
            cursor.execute(
                f"UPDATE writes SET data = ? WHERE {where}", (cipher.seal(merged, *place), *key)
            )

    def task_paths(self, thread_id: str) -> dict[str, str]:
        """LangGraph's names of the tasks of a thread that have written, by task id."""
        query = (
            "SELECT DISTINCT task_id, task_path FROM writes WHERE thread_id = ? AND task_path <> ''"
        )
        return dict(
            self._database.read_once(lambda cursor: cursor.execute(query, (thread_id,)).fetchall())
        )

    def put_memory(self, thread_id: str, checkpoint_id: str, items: Sequence[StoredItem]) -> None:
        """Record items that the step after a checkpoint of the outermost graph puts into a
        LangGraph store.

        They are committed with the step's checkpoint or earlier. Raises `StoreError` for a value
        that could not be read back.
        """
        config: RunnableConfig = {
            "configurable": {"thread_id": thread_id, "checkpoint_id": checkpoint_id}
        }
        plain = [[list(item.namespace), *item[1:]] for item in items]
        self.put_writes(config, [(MEMORY, plain)], f"{MEMORY}{uuid6()}")

    def memory(self, thread_id: str, checkpoint_id: str | None = None) -> list[StoredItem]:
        """Items that the steps before a checkpoint have put into a LangGraph store, oldest first.

        `checkpoint_id` is the thread's newest checkpoint by default. The step after it, which may
        have been interrupted, is then included.
        """

        def read(cursor: Cursor) -> list[StoredItem]:
            query = (
                "SELECT checkpoint_id, task_id, slot, data FROM writes WHERE thread_id = ? AND ns ="
                " '' AND "
            )
            query += "task_id >= ? AND task_id < ? ORDER BY task_id"
            rows = cursor.execute(query, (thread_id, MEMORY, f"{MEMORY}~")).fetchall()
            if not rows:
                return []
            query = "SELECT max(id) FROM checkpoints WHERE thread_id = ? AND ns = ''"
            end = checkpoint_id or str(cursor.execute(query, (thread_id,)).fetchone()[0])
            line = set(lineage(cursor, thread_id, end)) - {checkpoint_id}
            reader = self.blobs.reader(cursor, self.serializer, shared=False)
            opened = [
                reference
                for step, task_id, slot, data in rows
                if step in line
                for _, _, reference in ormsgpack.unpackb(
                    self.blobs.cipher.open(data, thread_id, "", step, task_id, str(slot))
                )
            ]
            reader.load(opened)
            found = [
                item
                for reference in opened
                for item in cast("list[list[Any]]", reader.value(reference))
            ]
            return [StoredItem(tuple(namespace), *rest) for namespace, *rest in found]

        return self._database.read_once(read)

    def adopt(self, found: CheckpointTuple, task_paths: Mapping[str, str]) -> None:
        """Store a checkpoint of another saver with its pending writes, on any branch of its
        thread.
        """
        place = place_of(found.config)
        parent = place_of(found.parent_config).checkpoint_id if found.parent_config else None
        if parent is not None:
            self._choose(place.thread_id, parent)
        before: RunnableConfig = {
            "configurable": {**found.config.get("configurable", {}), "checkpoint_id": parent}
        }
        self.put(before, found.checkpoint, found.metadata, found.checkpoint["channel_versions"])
        by_task: dict[tuple[str, bool], list[tuple[str, Any]]] = {}
        # an error is kept apart: the task may have ended well since
        for task_id, channel, value in found.pending_writes or ():
            by_task.setdefault((task_id, channel == ERROR), []).append((channel, value))
        for (task_id, _), writes in by_task.items():
            self.put_writes(found.config, writes, task_id, task_paths.get(task_id, ""))

    def _facts(
        self, place: CheckpointKey, config: RunnableConfig, metadata: CheckpointMetadata
    ) -> dict[str, Any]:
        """Metadata to store."""
        facts = public_metadata(config, metadata)
        return (
            facts
            if self.notes is None or place.ns
            else {**facts, **self.notes(metadata, place.checkpoint_id)}
        )

    # one run on a thread

    def _may_follow(self, place: CheckpointKey, facts: dict[str, Any], new: str) -> None:
        """Allow a branch after an edit or LangGraph's own fork, as both are made on request.

        Raise `RunError` early for a subgraph if the clock was set back: it writes before the graph
        around it does.
        """
        outermost = (facts.get("parents") or {}).get("")
        if place.ns and isinstance(outermost, str) and outermost > new:
            refuse_set_back_clock(place.thread_id, outermost)
        if facts.get("source") in ("update", "fork") and place.checkpoint_id:
            self._choose(place.thread_id, place.checkpoint_id)

    def _choose(self, thread_id: str, checkpoint_id: str) -> None:
        remember(self._chosen, (thread_id, checkpoint_id), None)

    def _refuse_second_run(self, cursor: Cursor, place: CheckpointKey, new: str) -> None:
        if place.ns or (place.checkpoint_id is None and place.thread_id not in self._new):
            return
        chosen = (place.thread_id, place.checkpoint_id) in self._chosen
        refuse_stranger(self._database, cursor, place, new, chosen=chosen)

    # reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        place = place_of(config)
        newest = "" if place.checkpoint_id else " ORDER BY id DESC LIMIT 1"
        given = "thread_id = ? AND ns = ?" + (" AND id = ?" if place.checkpoint_id else "")
        values = (place.thread_id, place.ns, place.checkpoint_id)[: 3 if place.checkpoint_id else 2]
        columns = f"{ROW}, {_HIGHEST_OF_THREAD}" if place.checkpoint_id else ROW
        if place.checkpoint_id and not place.ns:
            self._choose(place.thread_id, place.checkpoint_id)

        held = self._database.held.of(place.thread_id)
        if (
            held is not None
            and held.new
            and place.ns not in held.namespaces
            and not place.checkpoint_id
        ):
            remember(self._new, place.thread_id, None)
            return None
        epoch = self.blobs.epoch

        def read(cursor: Cursor) -> CheckpointTuple | None:
            row = cursor.execute(
                f"SELECT {columns} FROM checkpoints WHERE {given}{newest}", values
            ).fetchone()
            if row is None:
                return None
            # a branch from there must also come after the thread's newest checkpoint
            if place.checkpoint_id and row[-1]:
                self._go_on_after(str(row[-1]))
            return self._reading(cursor, epoch, shared=False).tuples(
                [CheckpointRow(*row[: len(CheckpointRow._fields)])]
            )[0]

        found = self._database.read_once(read)
        if found is None:
            remember(self._new, place.thread_id, None)
        return found

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return (
            await asyncio.to_thread(self.get_tuple, config)
            if self._database.is_blocking
            else self.get_tuple(config)
        )

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest first. Those of one call share their common messages, so they must
        not be edited.

        The filter is applied here, not in SQL. Metadata may be encrypted, and a name in a filter
        cannot inject anything.
        """
        given, values = conditions(config, before)
        query = f"SELECT {ROW} FROM checkpoints WHERE {given} ORDER BY id DESC, seq DESC"
        epoch = self.blobs.epoch
        with self._database.read() as cursor:
            reading = self._reading(cursor, epoch, shared=True)
            bound = query if filter or limit is None else f"{query} LIMIT {int(limit)}"
            rows = [CheckpointRow(*row) for row in cursor.execute(bound, values).fetchall()]
            if filter:
                rows = [row for row in rows if matches(reading.metadata(row), filter)]
            found = reading.tuples(rows[:limit])
        yield from found

    def _reading(self, cursor: Cursor, epoch: str, *, shared: bool) -> StoreSnapshot:
        def note(here: tuple[str, str, str], channels: Channels) -> None:
            self._go_on_after(here[2])
            remember(self._parents, here, (epoch, channels))

        reader = self.blobs.reader(cursor, self.serializer, shared=shared)
        return StoreSnapshot(cursor, reader, self.blobs.cipher, note)

    def _go_on_after(self, checkpoint_id: str) -> None:
        if checkpoint_id > self._highest:
            self._highest = checkpoint_id
            continue_ids_after(checkpoint_id)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        def listed() -> Sequence[CheckpointTuple]:
            return [*self.list(config, filter=filter, before=before, limit=limit)]

        for found in await asyncio.to_thread(listed) if self._database.is_blocking else listed():
            yield found

    # maintenance of threads

    def delete_thread(self, thread_id: str) -> None:
        """Delete the checkpoints of a thread. Its trajectory remains.
        `hrm_agent.store.upkeep.maintenance.delete_runs` deletes both.
        """
        self._touched.pop(str(thread_id), None)
        self._database.write(lambda cursor: delete_threads(cursor, [str(thread_id)]))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of LangGraph's runs, except those on which another run's state
        depends.
        """
        self._database.write(
            lambda cursor: delete_runs_checkpoints(cursor, self.blobs.cipher, run_ids)
        )

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to a new one. Its values are shared."""

        def copy_all(cursor: Cursor) -> None:
            copy_rows(cursor, self.blobs.cipher, str(source_thread_id), str(target_thread_id))
            touch_thread(cursor, str(target_thread_id), time.time())

        self._database.write_once(copy_all)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Prune threads as LangGraph does: `keep_latest` keeps the newest checkpoint of each
        namespace, `delete` deletes all of them.

        Checkpoints on which the newest one's state depends are kept, as a `DeltaChannel` is folded
        from writes.
        """
        if strategy not in ("keep_latest", "delete"):
            raise StoreError(
                f"There is no strategy {strategy!r}.", "Strategies: keep_latest, delete."
            )
        threads = [str(thread) for thread in thread_ids]
        if strategy == "delete":
            self._database.write(lambda cursor: delete_threads(cursor, threads))
        else:
            self._database.write(lambda cursor: keep_newest(cursor, self.blobs.cipher, threads))

    async def adelete_thread(self, thread_id: str) -> None:
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await asyncio.to_thread(self.prune, thread_ids, strategy=strategy)

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Next version of a channel, as a whole number. A thread that another saver started keeps
        its form: `NUMBER.FRACTION`, zero-padded.
        """
        if isinstance(current, str):
            return f"{int(current.partition('.')[0]) + 1:032}.0"
        return 1 if current is None else current + 1
