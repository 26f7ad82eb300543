"""Verification of a store: everything is read as a resume, a replay or a trainer would read it.

Hashes and references show whether bytes are unchanged, but not that a thread can be opened. So
every checkpoint is made into objects, by the code of a resume and as strictly. Every record is
read, and the tool calls and model calls in checkpoints are compared with their records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.checkpoint.base import CheckpointTuple

from hrm_agent.errors import HrmError, StoreDamagedError, StoreError
from hrm_agent.langgraph_format import deltas_of, snapshot_value
from hrm_agent.store.checkpoints.reader import (
    ROW,
    CheckpointRow,
    StoreSnapshot,
    read_manifest,
)
from hrm_agent.store.database.cursors import Cursor
from hrm_agent.store.run_store import RunStore
from hrm_agent.store.upkeep.scan import UNREADABLE, rows_of, stored_references
from hrm_agent.store.values.refusals import RefusedValue, UnknownType
from hrm_agent.store.values.serializer import StrictSerializer
from hrm_agent.store.values.value_reader import MSGPACK, hash_of, references
from hrm_agent.trajectory import RunStatus
from hrm_agent.trajectory.lint import lint

__all__ = ["ValueCount", "verify"]

_AT_ONCE = 500
_CALL_ID = "call_id"
"""Key in a message's `response_metadata` for the id of its model call."""
_OUR_GRAPH = re.compile(r"(tool_loop|reasoning|research)$|hrm_agent\.graphs\.")


@dataclass(slots=True)
class ValueCount:
    """Distinct values that were read as a resumed run reads them. Items of lists and dicts count
    individually.
    """

    made: set[int] = field(default_factory=set[int])
    """Hashes of values that could be read."""
    refused: dict[int, str] = field(default_factory=dict[int, str])
    """Reasons of values that could not be read, by hash."""


@dataclass(frozen=True, slots=True)
class _Counting:
    """Loader that counts values."""

    serializer: StrictSerializer
    count: ValueCount

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        key = hash(data)
        try:
            value = self.serializer.loads_typed(data)
        except RefusedValue as error:
            self.count.refused[key] = str(error)
            raise
        self.count.made.add(key)
        return value


def verify(
    store: RunStore, allow: Iterable[tuple[str, ...]] = (), count: ValueCount | None = None
) -> Iterator[str]:
    """Problems of a store, as messages (empty if there are none).

    Runs the database's own check. Checks every value against its hash, and every reference of
    checkpoints, writes, requests and calls. Opens every checkpoint, reads every record and compares
    checkpoints with records. Checks the invariants of every ended trajectory. `allow`: custom types
    in the states of graphs, as (module, name). `count` collects the values read.
    """
    count = ValueCount() if count is None else count
    loader = _Counting(store.checkpointer.with_allowlist(list(allow)).serializer, count)
    yield from _told("the file", store.database.problems)
    yield from _told("values", lambda: _references(store, loader))
    yield from _told("records", lambda: _records(store))
    shut = False
    for finding in _told("threads", lambda: _threads(store, loader)):
        shut = True
        yield finding
    if count.refused and not shut:
        yield (
            f"{len(count.refused)} values cannot be read; one is"
            f" {next(iter(count.refused.values()))}"
        )
    yield from _told("trajectories", lambda: _trajectories(store))


def _told(what: str, find: Callable[[], Iterable[str]]) -> Iterator[str]:
    """Findings of a check. An unreadable database page is a finding too, and ends the check."""
    try:
        yield from find()
    except StoreDamagedError as error:
        yield f"{what}: {error.message}"


def _references(store: RunStore, loader: _Counting) -> Iterator[str]:
    known: set[bytes] = set()
    with store.database.read() as cursor:
        yield from _values(store, cursor, known, loader)
        for where, found in stored_references(store.cipher, cursor):
            if found is None:
                yield where
            elif lost := [hash_ for hash_ in found if hash_ not in known]:
                yield f"{where}: names the value {lost[0].hex()}, which is not in the store"
        yield from _dangling(cursor)


def _threads(store: RunStore, loader: _Counting) -> Iterator[str]:
    query = "SELECT DISTINCT thread_id FROM checkpoints ORDER BY thread_id"
    with store.database.read() as cursor:
        ids = [str(row[0]) for row in cursor.execute(query).fetchall()]
    for id_ in ids:
        yield from _told(f"thread {id_!r}", partial(_thread, store, id_, loader))


def _thread(store: RunStore, id_: str, loader: _Counting) -> Iterator[str]:
    return _Thread(store, id_, loader).findings()


def _values(store: RunStore, cursor: Cursor, known: set[bytes], loader: _Counting) -> Iterator[str]:
    nested: list[tuple[bytes, bytes]] = []
    for hash_, kind, data in rows_of(cursor, "SELECT seq, hash, kind, data FROM blobs"):
        name = bytes(hash_)
        known.add(name)
        try:
            opened = store.cipher.open(data, "blob", name)
            held = references(int(kind), opened)
        except UNREADABLE as error:
            yield f"value {name.hex()}: {error}"
            continue
        if hash_of(int(kind), opened, store.cipher.hash_key) != name:
            yield f"value {name.hex()}: its bytes do not have this hash"
        elif kind == MSGPACK:
            with suppress(RefusedValue):  # it is reported where the value is needed
                loader.loads_typed(("msgpack", opened))
        nested.extend((name, child) for child in held)
    yield from (
        f"value {name.hex()}: names {child.hex()}, which is lost"
        for name, child in nested
        if child not in known
    )


def _dangling(cursor: Cursor) -> Iterator[str]:
    """Rows that refer to missing rows.

    A run continues before a checkpoint is stored. If it is killed or refused, its tasks may have
    written to a checkpoint that was never stored. A missing checkpoint is lost only if another one
    names it as its parent.
    """
    checks = {
        "model call {}: has neither tokens nor a request": (
            "SELECT id FROM calls WHERE id NOT IN (SELECT call_id FROM tokens) "
            "AND id NOT IN (SELECT call_id FROM requests)"
        ),
        "tokens of {}: have no model call": (
            "SELECT call_id FROM tokens WHERE call_id NOT IN (SELECT id FROM calls)"
        ),
        "request of model call {}: has no model call": (
            "SELECT call_id FROM requests WHERE call_id NOT IN (SELECT id FROM calls)"
        ),
        "model call {}: its parent is lost": (
            "SELECT id FROM calls WHERE parent NOT IN (SELECT id FROM calls)"
        ),
        "writes of thread {}: their checkpoint is lost": (
            "SELECT DISTINCT w.thread_id FROM writes w LEFT JOIN checkpoints c ON c.thread_id ="
            " w.thread_id AND c.ns = w.ns AND c.id = w.checkpoint_id WHERE c.id IS NULL AND EXISTS"
            " (SELECT 1 FROM checkpoints n WHERE n.thread_id = w.thread_id AND n.ns = w.ns AND"
            " n.parent_id = w.checkpoint_id)"
        ),
    }
    for words, query in checks.items():
        yield from (words.format(row[0]) for row in cursor.execute(query).fetchall())


def _records(store: RunStore) -> Iterator[str]:
    """Records that cannot be read, each on its own, so that a damaged one does not hide another."""
    journal = store.journal
    with store.database.read() as cursor:
        calls = [
            str(row[0]) for row in cursor.execute("SELECT id FROM calls ORDER BY seq").fetchall()
        ]
        tools = [
            str(row[0])
            for row in cursor.execute("SELECT id FROM tool_calls ORDER BY seq").fetchall()
        ]
        judges = [
            str(row[0]) for row in cursor.execute("SELECT DISTINCT run_id FROM overlays").fetchall()
        ]
        scored = [
            str(row[0])
            for row in cursor.execute("SELECT DISTINCT trajectory_id FROM scorings").fetchall()
        ]
        options = [
            str(row[0]) for row in cursor.execute("SELECT thread_id FROM options").fetchall()
        ]
        drew = [
            str(row[0]) for row in cursor.execute("SELECT DISTINCT thread_id FROM draws").fetchall()
        ]
    for read, ids in (
        (journal.find_call, calls),
        (journal.find_tool_call, tools),
        (journal.overlays, judges),
        (store.scorings.of, scored),
        (store.options.read, options),
        (journal.draws_of_thread, drew),
    ):
        for id_ in ids:
            try:
                read(id_)
            except HrmError as error:
                yield error.message


def _trajectories(store: RunStore) -> Iterator[str]:
    with store.database.read() as cursor:
        ids = [
            str(row[0])
            for row in cursor.execute("SELECT id FROM trajectories ORDER BY seq").fetchall()
        ]
    for id_ in ids:
        try:
            found = store.journal.find_trajectory(id_)
        except HrmError as error:
            yield f"trajectory {id_}: cannot be read ({error.message})"
            continue
        if found is not None and found.status is not RunStatus.RUNNING:
            yield from (f"trajectory {id_}: {finding}" for finding in lint(found))


class _Thread:
    """Verification of one thread, opened from its first checkpoint to its last."""

    def __init__(self, store: RunStore, thread_id: str, loader: _Counting) -> None:
        self._store = store
        self._id = thread_id
        self._loader = loader
        with store.database.read() as cursor:
            query = "SELECT 1 FROM trajectories WHERE thread_id = ?"
            self._recorded = cursor.execute(query, (thread_id,)).fetchone() is not None
        """True if a recorder was at work, so that everything that the thread's messages name is on
        record.
        """
        headers = store.journal.headers("thread_id = ?", (thread_id,), on_damage=lambda *_: None)
        self._word_for_word = any(_OUR_GRAPH.match(header.graph) for header in headers)
        """True if the thread's graph shows tools' answers unchanged. Other graphs may shorten them.
        """
        self._seen: set[str] = set()
        """Ids of messages in earlier checkpoints. An edit may change them later."""

    def findings(self) -> Iterator[str]:
        closed: list[tuple[str, StoreError]] = []
        newest: dict[tuple[str, str], CheckpointTuple] = {}
        parents: set[tuple[str, str]] = set()
        known: set[tuple[str, str]] = set()
        count = 0
        for found in self._opened(closed):
            count += 1
            named: Any = found.config.get("configurable", {})
            place = (str(named["checkpoint_ns"]), str(named["checkpoint_id"]))
            parent: Any = found.parent_config.get("configurable", {}) if found.parent_config else {}
            before = (place[0], str(parent.get("checkpoint_id", "")))
            by_graph = found.metadata.get("source") == "loop" and (not parent or before in known)
            held = [snapshot_value(value) for value in found.checkpoint["channel_values"].values()]
            started = newest.get(before)
            # the value depends on writes, which belong to an earlier checkpoint
            deltas = deltas_of(found.metadata)
            written = (
                []
                if started is None
                else [v for _, name, v in started.pending_writes or () if name in deltas]
            )
            yield from self._messages([*held, *written], place[1], compared=by_graph)
            newest[place] = found
            newest.pop(before, None)
            parents.add(before)
            known.add(place)
        for place, found in newest.items():
            if place not in parents:
                written = [value for _, _, value in found.pending_writes or ()]
                yield from self._messages(written, place[1], compared=True)
        if closed:
            yield self._said(closed, count + len(closed))

    def _said(self, closed: Sequence[tuple[str, StoreError]], count: int) -> str:
        id_, error = closed[0]
        reason = error.__cause__ or error.message
        shut = f"{len(closed)} of {count} checkpoints cannot be opened"
        if all(isinstance(each.__cause__, UnknownType) for _, each in closed):
            return (
                f"thread {self._id!r}: {shut} here; {id_} holds {reason}. That need not be damage:"
                " allow the type (--allow package.module:Class), or verify where the thread's graph"
                " can be imported"
            )
        return f"thread {self._id!r}: {shut}; {id_}: {reason}"

    def _opened(self, closed: list[tuple[str, StoreError]]) -> Iterator[CheckpointTuple]:
        """Checkpoints of the thread in the order of writing. Unreadable ones are added to
        `closed`.
        """
        query = (
            f"SELECT {ROW} FROM checkpoints WHERE thread_id = ? AND seq > ? ORDER BY seq LIMIT"
            f" {_AT_ONCE}"
        )
        last = -1
        while True:
            with self._store.database.read() as cursor:
                rows = [
                    CheckpointRow(*row)
                    for row in cursor.execute(query, (self._id, last)).fetchall()
                ]
                found = self._open(cursor, rows, closed)
            yield from found
            if len(rows) < _AT_ONCE:
                return
            last = rows[-1].seq

    def _open(
        self, cursor: Cursor, rows: Sequence[CheckpointRow], closed: list[tuple[str, StoreError]]
    ) -> list[CheckpointTuple]:
        try:
            reader = self._store.blobs.reader(cursor, self._loader, shared=True)
            return StoreSnapshot(cursor, reader, self._store.cipher, lambda *_: None).tuples(rows)
        except StoreError as error:
            if len(rows) == 1:
                closed.append((rows[0].id, error))
                self._count_each(cursor, rows[0])
                return []
        middle = len(rows) // 2  # a damaged one among many is found in few steps
        return self._open(cursor, rows[:middle], closed) + self._open(cursor, rows[middle:], closed)

    def _count_each(self, cursor: Cursor, row: CheckpointRow) -> None:
        """Read the other values of a checkpoint with an unreadable value."""
        reader = self._store.blobs.reader(cursor, self._loader, shared=True)
        with suppress(*UNREADABLE):
            _, channels = read_manifest(self._store.cipher.open(row.manifest, *row[1:4]))
            for _, reference in channels.values():
                if reference is not None:
                    with suppress(*UNREADABLE):
                        reader.load([reference])
                        reader.value(reference)

    # comparison of messages with records

    def _messages(
        self, values: Iterable[Any], checkpoint_id: str, *, compared: bool
    ) -> Iterator[str]:
        """Compare messages with records. `compared`: a graph has written them, and they were not
        edited.
        """
        for message in _messages_in(values):
            if message.id is None or message.id in self._seen:
                continue
            self._seen.add(message.id)
            if compared and (problem := self._problem(message)):
                yield f"thread {self._id!r}, checkpoint {checkpoint_id}: {problem}"

    def _problem(self, message: BaseMessage) -> str:
        if isinstance(message, ToolMessage) and isinstance(message.artifact, dict):
            told = cast("dict[str, Any]", message.artifact)
            return (
                self._tool_problem(message, str(told["record"]), told.get("status"))
                if "record" in told
                else ""
            )
        call_id = (
            message.response_metadata.get(_CALL_ID) if isinstance(message, AIMessage) else None
        )
        if (
            self._recorded
            and isinstance(call_id, str)
            and not self._store.journal.has_call(call_id)
        ):
            return f"a message names the model call {call_id}, which is not on record"
        return ""

    def _tool_problem(self, message: ToolMessage, record_id: str, status: Any) -> str:
        name = f"the tool call {message.tool_call_id}"
        with suppress(HrmError):  # an unreadable one is reported separately
            record = self._store.journal.find_tool_call(record_id)
            if record is None:
                return (
                    f"{name} is answered, and its record {record_id} is not there"
                    if self._recorded
                    else ""
                )
            if record.status is None:
                return f"{name} is answered, and its record {record_id} says that it is under way"
            if record.status.value != status:
                return f"{name} ended {status}, its record {record_id} says {record.status.value}"
            if self._word_for_word and message.content != record.content:
                return f"{name} was answered with another text than its record {record_id} has"
        return ""


def _messages_in(values: Iterable[Any]) -> Iterator[BaseMessage]:
    for value in values:
        for item in cast("list[Any]", value) if isinstance(value, list) else (value,):
            if isinstance(item, BaseMessage):
                yield item
