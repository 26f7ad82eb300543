"""LangGraph's checkpoints in the run store: a `BaseCheckpointSaver` for sync and async graphs.

One transaction writes a checkpoint, its new values, and the pending writes that led to it.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import (
    AsyncIterator,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from typing import Any, Protocol, Self, cast

import ormsgpack
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.pregel import Pregel

from hrm_agent.basics.bounded import remember
from hrm_agent.errors import StoreError
from hrm_agent.langgraph_format import ERROR, collect_declared_types
from hrm_agent.store.checkpoints.reader import (
    ROW,
    Channels,
    CheckpointKey,
    CheckpointRow,
    StoreSnapshot,
    conditions,
    matches,
)
from hrm_agent.store.checkpoints.thread_heads import ThreadHeads, touch_thread
from hrm_agent.store.checkpoints.threads import (
    copy_rows,
    delete_runs_checkpoints,
    delete_threads,
    keep_newest,
)
from hrm_agent.store.checkpoints.written_form import (
    REGULAR,
    manifest_of,
    merged_writes,
    public_metadata,
    refusing,
    slots_of,
)
from hrm_agent.store.database.committer import committed, finished
from hrm_agent.store.database.cursors import Cursor, answered
from hrm_agent.store.database.database import Database
from hrm_agent.store.values.blobs import Blobs
from hrm_agent.store.values.content_addressed import ValueWriter
from hrm_agent.store.values.serializer import StrictSerializer, declared_types

__all__ = [
    "CheckpointNotes",
    "StoreSaver",
]


def _place_of(config: RunnableConfig) -> CheckpointKey:
    """Thread, namespace and checkpoint of a config."""
    named: Mapping[str, Any] = config.get("configurable", {})
    checkpoint_id = named.get("checkpoint_id")
    return CheckpointKey(
        str(named["thread_id"]),
        str(named.get("checkpoint_ns") or ""),
        str(checkpoint_id or "") or None,
    )


_HIGHEST_OF_THREAD = (
    "(SELECT max(n.id) FROM checkpoints n WHERE n.thread_id = checkpoints.thread_id AND n.ns = '')"
)


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
        self.database = database
        self.blobs = blobs
        self.heads = ThreadHeads(database)
        self._parents: dict[tuple[str, str, str], tuple[str, Channels]] = {}
        """Epoch and channels of the newest checkpoints that this process wrote or read, by thread,
        namespace and id. In another epoch their values may have been collected.
        """
        self._own: dict[tuple[str, str, str], None] = {}
        """Checkpoints that this process has written. Writes of its tasks to them are new."""
        self._slots: dict[tuple[str, str, str, str, int], None] = {}
        """Slots that tasks have written."""
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
        return self.database.url

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
        place = self._noted(_place_of(config))
        cipher = self.blobs.cipher
        facts = public_metadata(config, metadata)
        if self.notes is not None and not place.ns:
            facts.update(self.notes(metadata, place.checkpoint_id))
        here = (place.thread_id, place.ns, checkpoint["id"])
        remember(self._own, here, None)
        parent = self._parents.get((place.thread_id, place.ns, place.checkpoint_id or ""), ("", {}))
        sealed = cipher.seal(ormsgpack.packb(facts, default=str), *here, "metadata")
        self.heads.may_follow(place, facts, checkpoint["id"])
        now = time.time()
        written: list[tuple[str, Channels]] = []
        touched: list[tuple[str, float]] = []

        def encode(writer: ValueWriter) -> tuple[bytes, Channels]:
            with refusing(place.thread_id):
                return manifest_of(
                    checkpoint, writer, new_versions, parent[1] if parent[0] == writer.epoch else {}
                )

        def insert(cursor: Cursor, encoded: tuple[bytes, Channels]) -> RunnableConfig:
            self.heads.refuse_second_run(cursor, place, checkpoint["id"])
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
                touched.append((self.database.epoch, now))
            written.append((self.database.epoch, channels))
            self.database.held.add_checkpoint(*here, place.checkpoint_id)
            self.heads.written(place, checkpoint["id"])
            return place.config(checkpoint["id"])

        def done(error: BaseException | None) -> None:
            if error is None:
                remember(self._parents, here, written[-1])
                if touched:
                    remember(self._touched, place.thread_id, touched[-1])
            elif lease is not None:  # otherwise the waiting caller gets the error
                self.database.fence.stop(place.thread_id, lease, error)

        lease = None
        held = self.database.held.of(place.thread_id)
        if self.database.joins(held):
            lease = held.lease
            held.parents[place.ns, checkpoint["id"]] = place.checkpoint_id
            seconds = self.database.joined_seconds
            self.blobs.write_later(self.serializer, encode, insert, place.thread_id, done, seconds)
            return finished(place.config(checkpoint["id"]))
        future = self.blobs.write(self.serializer, encode, insert, place.thread_id, waits=waits)
        future.add_done_callback(lambda committed: done(committed.exception()))
        return future

    def _noted(self, place: CheckpointKey) -> CheckpointKey:
        if (held := self.database.held.of(place.thread_id)) is not None:
            held.namespaces.add(place.ns)
        return place

    def _is_due(self, place: CheckpointKey, now: float) -> bool:
        """True if the thread is to be noted as written to. That happens once per second, as the
        thread may have been deleted since.
        """
        epoch, before = self._touched.get(place.thread_id, ("", 0.0))
        return place.checkpoint_id is None or epoch != self.database.epoch or now - before >= 1.0

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
        place = self._noted(_place_of(config))
        key = (place.thread_id, place.ns, place.checkpoint_id or "", task_id)

        def encode(writer: ValueWriter) -> dict[int, list[list[Any]]]:
            with refusing(place.thread_id):
                return slots_of(writes, writer)

        def insert(cursor: Cursor, slots: dict[int, list[list[Any]]]) -> None:
            for slot, given in slots.items():
                self._insert_slot(cursor, (*key, slot), task_path, given)

        if any(channel in WRITES_IDX_MAP for channel, _ in writes):
            return self.blobs.write(self.serializer, encode, insert, place.thread_id)
        held = self.database.held.of(place.thread_id)
        seconds = self.database.joined_seconds if self.database.joins(held) else None
        self.blobs.write_later(self.serializer, encode, insert, place.thread_id, seconds=seconds)
        return None

    def _insert_slot(
        self,
        cursor: Cursor,
        key: tuple[str, str, str, str, int],
        task_path: str,
        given: list[list[Any]],
    ) -> None:
        cipher = self.blobs.cipher
        place = tuple(map(str, key))
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
            self.database.read_once(lambda cursor: cursor.execute(query, (thread_id,)).fetchall())
        )

    def adopt(self, found: CheckpointTuple, task_paths: Mapping[str, str]) -> None:
        """Store a checkpoint of another saver with its pending writes, on any branch of its
        thread.
        """
        parent = _place_of(found.parent_config).checkpoint_id if found.parent_config else None
        before: RunnableConfig = {
            "configurable": {**found.config.get("configurable", {}), "checkpoint_id": parent}
        }
        self.choose(before)
        self.put(before, found.checkpoint, found.metadata, found.checkpoint["channel_versions"])
        by_task: dict[tuple[str, bool], list[tuple[str, Any]]] = {}
        # an error is kept apart: the task may have ended well since
        for task_id, channel, value in found.pending_writes or ():
            by_task.setdefault((task_id, channel == ERROR), []).append((channel, value))
        for (task_id, _), writes in by_task.items():
            self.put_writes(found.config, writes, task_id, task_paths.get(task_id, ""))

    def choose(self, config: RunnableConfig) -> None:
        """Make the checkpoint that `config` names the parent of the next one, even if it is not the
        newest of its thread.
        """
        place = _place_of(config)
        if place.checkpoint_id is not None:
            self.heads.choose(place.thread_id, place.checkpoint_id)

    # reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        place = _place_of(config)
        newest = "" if place.checkpoint_id else " ORDER BY id DESC LIMIT 1"
        given = "thread_id = ? AND ns = ?" + (" AND id = ?" if place.checkpoint_id else "")
        values = (place.thread_id, place.ns, place.checkpoint_id)[: 3 if place.checkpoint_id else 2]
        columns = f"{ROW}, {_HIGHEST_OF_THREAD}" if place.checkpoint_id else ROW
        if place.checkpoint_id and not place.ns:
            self.heads.choose(place.thread_id, place.checkpoint_id)

        held = self.database.held.of(place.thread_id)
        if (
            held is not None
            and held.new
            and place.ns not in held.namespaces
            and not place.checkpoint_id
        ):
            remember(self.heads.empty, place.thread_id, None)
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
                self.heads.go_on_after(str(row[-1]))
            return self._reading(cursor, epoch, shared=False).tuples(
                [CheckpointRow(*row[: len(CheckpointRow._fields)])]
            )[0]

        found = self.database.read_once(read)
        if found is None:
            remember(self.heads.empty, place.thread_id, None)
        return found

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return (
            await asyncio.to_thread(self.get_tuple, config)
            if self.database.is_blocking
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
        with self.database.read() as cursor:
            reading = self._reading(cursor, epoch, shared=True)
            bound = query if filter or limit is None else f"{query} LIMIT {int(limit)}"
            rows = [CheckpointRow(*row) for row in cursor.execute(bound, values).fetchall()]
            if filter:
                rows = [row for row in rows if matches(reading.metadata(row), filter)]
            found = reading.tuples(rows[:limit])
        yield from found

    def _reading(self, cursor: Cursor, epoch: str, *, shared: bool) -> StoreSnapshot:
        def note(here: tuple[str, str, str], channels: Channels) -> None:
            self.heads.go_on_after(here[2])
            remember(self._parents, here, (epoch, channels))

        reader = self.blobs.reader(cursor, self.serializer, shared=shared)
        return StoreSnapshot(cursor, reader, self.blobs.cipher, note)

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

        for found in await asyncio.to_thread(listed) if self.database.is_blocking else listed():
            yield found

    # maintenance of threads

    def delete_thread(self, thread_id: str) -> None:
        """Delete the checkpoints of a thread. Its trajectory remains.
        `hrm_agent.store.upkeep.maintenance.delete_runs` deletes both.
        """
        self._touched.pop(str(thread_id), None)
        self.database.write(lambda cursor: delete_threads(cursor, [str(thread_id)]))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of LangGraph's runs, except those on which another run's state
        depends.
        """
        self.database.write(
            lambda cursor: delete_runs_checkpoints(cursor, self.blobs.cipher, run_ids)
        )

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to a new one. Its values are shared."""
        source = str(source_thread_id)
        target = str(target_thread_id)
        self.database.write_once(
            lambda cursor: copy_rows(cursor, self.blobs.cipher, source, target)
        )

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
            self.database.write(lambda cursor: delete_threads(cursor, threads))
        else:
            self.database.write(lambda cursor: keep_newest(cursor, self.blobs.cipher, threads))

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
