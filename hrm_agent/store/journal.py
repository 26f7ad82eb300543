"""Journal in the store's database: model calls, tool calls, trajectories, overlays and scorings.

Tokens have a table of their own, as little-endian int32 and float32 bytes. The graph state carries
only the call's id (inside the message), which keeps checkpoints small.

Draws are the values that nodes took from the clock, `uuid` and `random`. Each attempt of a task
that drew anything has one row.

Options are the settings that a thread was started with, as TOML for `hrm_agent.config`. They are
encrypted with the rest of the store, and any process that opens it can resume the thread. Earlier
versions kept them in a file beside the store, which is read if the store has none.

Overlays are judgements by training runs, one row for each trajectory of a run.

Scorings are scores of recorded runs by rubric. They never replace the rewards that a run was
recorded with.

Tool calls are found by id, by the hash of their name and arguments, and by their idempotency key.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from hrm_agent.errors import StoreError
from hrm_agent.store.database.cursors import Cursor, WriteCursor, answered, placeholders
from hrm_agent.store.database.database import Database
from hrm_agent.store.database.fencing import HeldThread, KnownToolCall, WrittenCall
from hrm_agent.store.records import (
    CALLS,
    DRAWS,
    HEADERS,
    OPTIONS,
    OVERLAYS,
    SCORINGS,
    TOOL_CALLS,
    RecordTable,
)
from hrm_agent.store.threads import describe_thread
from hrm_agent.store.values.cipher import Cipher
from hrm_agent.store.values.damage import OnDamage, reading
from hrm_agent.store.values.packed_records import plain_mask, plain_numbers
from hrm_agent.store.values.plain_reader import NeedsItsType, PlainLoader, request_part
from hrm_agent.store.values.sent_requests import Sent, copies_of, read_requests
from hrm_agent.store.values.value_reader import hash_of, read_values
from hrm_agent.trajectory import (
    Call,
    CheckpointLineage,
    Overlay,
    RunStatus,
    Scoring,
    TaskDraws,
    ToolCall,
    ToolStatus,
    Trajectory,
    content_hash,
)

if TYPE_CHECKING:
    from hrm_agent.store.values.requests import RequestStore, SentRow
    from hrm_agent.store.values.serializer import StrictSerializer

__all__ = [
    "Scorings",
    "StoreJournal",
    "ThreadOptions",
]

_FOUND_BY = ("id", "checkpoint_id", "arguments_hash", "key_hash")
"""Columns of a `KnownToolCall`."""
_INSERT = (
    f"INSERT INTO tool_calls ({', '.join(_FOUND_BY)}, thread_id, record) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (id)"
)


_CALLS = (
    "SELECT c.id, c.record, t.token_ids, t.mask, t.logprobs, r.data FROM calls c "
    "LEFT JOIN tokens t ON t.call_id = c.id LEFT JOIN requests r ON r.call_id = c.id"
)
_PATH_QUERY = """
WITH RECURSIVE path (id, parent, depth) AS (
    SELECT id, parent, 0 FROM calls WHERE id = ?
    UNION ALL SELECT c.id, c.parent, p.depth + 1 FROM calls c JOIN path p ON c.id = p.parent
    WHERE p.depth < 200000
)
SELECT path.id, t.token_ids FROM path JOIN tokens t ON t.call_id = path.id ORDER BY path.depth DESC
"""
_LINE = """
WITH RECURSIVE line (id, parent_id, depth) AS (
    SELECT id, parent_id, 0 FROM checkpoints WHERE thread_id = ? AND ns = ? AND id = ?
    UNION ALL SELECT c.id, c.parent_id, l.depth + 1 FROM checkpoints c JOIN line l ON c.id = l.parent_id
    WHERE c.thread_id = ? AND c.ns = ? AND l.depth < 200000
)
SELECT id, parent_id FROM line ORDER BY depth DESC
"""


class StoreJournal:
    """Journal of a run store. Every write is committed when it returns, except draws and a run's
    joined steps.
    """

    def __init__(
        self, database: Database, cipher: Cipher, requests: Callable[[], RequestStore]
    ) -> None:
        """`requests` imports LangGraph. It is called only to write a request, or to read unusual
        messages.
        """
        self._database, self._cipher, self._requests = database, cipher, requests
        self._headers = RecordTable(HEADERS, database, cipher)
        self._tool_call_rows = RecordTable(TOOL_CALLS, database, cipher)
        self._draws = RecordTable(DRAWS, database, cipher)
        self._overlays = RecordTable(OVERLAYS, database, cipher)
        self.is_blocking = database.is_blocking
        """True if a write waits for a disk or a server. An event loop then hands it to a thread."""

    @property
    def serializer(self) -> StrictSerializer:
        """Serializer of the store's checkpoints."""
        return self._requests().serializer

    # model calls

    def calls_of_task(self, thread_id: str, task_id: str) -> Sequence[Call]:
        calls = self._calls("c.thread_id = ? AND c.task_id = ?", (thread_id, task_id))
        return sorted(calls, key=lambda call: call.call_index)

    def tasks_of_thread(self, thread_id: str) -> set[str]:
        if self._has_no_calls(thread_id):
            return set()
        query = "SELECT DISTINCT task_id FROM calls WHERE thread_id = ?"
        with self._database.read() as cursor:
            return {str(task) for (task,) in cursor.execute(query, (thread_id,)).fetchall()}

    def _has_no_calls(self, thread_id: str) -> bool:
        held = self._database.held.of(thread_id)
        return held is not None and held.has_no_calls

    def seeds_of_thread(self, thread_id: str) -> set[int]:
        if self._has_no_calls(thread_id):
            return set()
        query = "SELECT seed FROM calls WHERE thread_id = ? AND seed IS NOT NULL"
        with self._database.read() as cursor:
            return {int(seed) for (seed,) in cursor.execute(query, (thread_id,)).fetchall()}

    def find_call(self, call_id: str, *, request: bool = True) -> Call | None:
        return next(iter(self._calls("c.id = ?", (call_id,), requests=request)), None)

    def calls_among(self, ids: Sequence[str], *, steps_of: str | None = None) -> Iterator[Call]:
        """Model calls by their ids, or by the ids of their steps on the thread `steps_of`, without
        requests.
        """
        for start in range(0, len(ids), 500):
            some = ids[start : start + 500]
            column, values = (
                ("id", some) if steps_of is None else ("checkpoint_id", [*some, steps_of])
            )
            and_thread = "" if steps_of is None else " AND c.thread_id = ?"
            yield from self._calls(
                f"c.{column} IN ({placeholders(len(some))}){and_thread}", values, requests=False
            )

    def has_call(self, call_id: str) -> bool:
        """True if a model call is on record, readable or not."""
        with self._database.read() as cursor:
            return (
                cursor.execute("SELECT 1 FROM calls WHERE id = ?", (call_id,)).fetchone()
                is not None
            )

    def path_tokens(self, call_id: str) -> tuple[int, ...]:
        with self._database.read() as cursor:
            deltas = cursor.execute(_PATH_QUERY, (call_id,)).fetchall()
        if not deltas:
            raise KeyError(call_id)
        with reading("model call", call_id):
            opened = (
                plain_numbers(self._cipher.open(delta, "tokens", id_)) for id_, delta in deltas
            )
            return tuple(array("i", b"".join(opened)))

    def write_call(self, call: Call, sent: Sequence[Any] = ()) -> Call:
        seal = self._cipher.seal
        record = CALLS.sealed(self._cipher, call, call.id)
        tokens = (
            seal(array("i", call.token_ids).tobytes(), "tokens", call.id),
            seal(bytes(call.mask), "mask", call.id),
            seal(array("f", call.logprobs).tobytes(), "logprobs", call.id),
        )
        identity, messages = call.identity, sent or call.request
        held = self._database.held.of(identity.thread_id)

        def insert(cursor: Cursor, request: SentRow | None = None) -> bool:
            query = (
                "INSERT INTO calls (id, thread_id, task_id, checkpoint_id, parent, seed, record) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING RETURNING 1"
            )
            row = (
                call.id,
                identity.thread_id,
                identity.task_id,
                identity.step,
                call.parent,
                call.seed,
                record,
            )
            written = answered(cursor, query, row, (1,)) is not None
            # a call must have a row in one of the two tables to be found
            if written and (call.token_ids or request is None):
                cursor.execute(
                    "INSERT INTO tokens (call_id, token_ids, mask, logprobs) VALUES (?, ?, ?, ?)",
                    (call.id, *tokens),
                )
            if written and request is not None:
                sealed = self._cipher.seal(request.data, "request", call.id)
                cursor.execute(
                    "INSERT INTO requests (call_id, data) VALUES (?, ?)", (call.id, sealed)
                )
            if written and held is not None:
                held.add_call(call, _as_written((record, *tokens), call, request))
            return written

        if messages is None and call.tools is None:
            done = self._database.submit(insert, identity.thread_id, waits=True)
        else:
            done = self._requests().write(messages, call.tools, insert, identity.thread_id)
        if not done.result():
            return self.find_call(call.id) or call
        return call

    def _calls(self, where: str, values: Sequence[Any], *, requests: bool = True) -> list[Call]:
        with self._database.read() as cursor:
            rows = cursor.execute(f"{_CALLS} WHERE {where} ORDER BY c.seq", values).fetchall()
            named = {str(id_): data for id_, *_, data in rows if data is not None and requests}
            sent = self._sent(cursor, named) if named else {}
        calls = [self._read_call(*row) for *row, _ in rows]
        return [
            call.model_copy(update=sent[call.id]) if call.id in sent else call for call in calls
        ]

    def _sent(self, cursor: Cursor, rows: Mapping[str, bytes]) -> Sent:
        """Read requests without LangGraph if the messages are plain, as it takes most of a second
        to import.
        """
        try:
            reader = read_values(cursor, self._cipher, PlainLoader(request_part), shared=True)
            return read_requests(reader, self._cipher, rows, lambda dump: dump)
        except NeedsItsType:
            return self._requests().read(cursor, rows)

    def _read_call(
        self, id_: str, record: bytes, token_ids: bytes | None, mask: bytes, logprobs: bytes
    ) -> Call:
        opened = self._cipher.open
        call = CALLS.opened(self._cipher, (id_,), record)
        if token_ids is None:
            return call
        with reading("model call", id_):
            tokens = {
                "token_ids": tuple(array("i", plain_numbers(opened(token_ids, "tokens", id_)))),
                "mask": tuple(map(bool, plain_mask(opened(mask, "mask", id_)))),
                "logprobs": tuple(array("f", plain_numbers(opened(logprobs, "logprobs", id_)))),
            }
        return call.model_copy(update=tokens)

    # tool calls

    def find_tool_call(self, record_id: str, thread_id: str = "") -> ToolCall | None:
        if (held := self._database.held.of(thread_id)) is not None:
            if (known := held.record(record_id)) is not None:
                return known[0]
            inherited = held.inherited(lambda: self._inherited_steps(thread_id))
            if record_id not in self._tool_calls_of(held, thread_id) and record_id not in map(
                itemgetter(0), inherited
            ):
                return None
        return next(iter(self._tool_call_rows.read("id = ?", (record_id,))), None)

    def _tool_calls_of(self, held: HeldThread, thread_id: str) -> dict[str, KnownToolCall]:
        def load() -> list[KnownToolCall]:
            # do not miss what another thread is committing
            with self._database.settled() as cursor:
                query = (
                    f"SELECT {', '.join(_FOUND_BY)} FROM tool_calls WHERE thread_id = ? ORDER"
                    " BY seq"
                )
                return [
                    KnownToolCall._make(row)
                    for row in cursor.execute(query, (thread_id,)).fetchall()
                ]

        return held.tool_calls(load)

    def find_repeat(self, thread_id: str, name: str, arguments: dict[str, Any] | str) -> str | None:
        hash_ = self._hash(name, arguments)
        if (held := self._database.held.of(thread_id)) is not None:
            found = self._tool_calls_of(held, thread_id).values()
            return next((known.id for known in [*found] if known.arguments_hash == hash_), None)
        query = (
            "SELECT id FROM tool_calls WHERE thread_id = ? AND arguments_hash = ? ORDER BY seq"
            " LIMIT 1"
        )
        with self._database.read() as cursor:
            row = cursor.execute(query, (thread_id, hash_)).fetchone()
        return str(row[0]) if row else None

    def find_by_key(self, thread_id: str, key: str) -> ToolCall | None:
        found = self._tool_call_rows.read(
            "thread_id = ? AND key_hash = ?", (thread_id, self._hash("key", key))
        )
        return max(found, key=lambda call: call.status is ToolStatus.OK, default=None)

    def write_tool_call(
        self, tool_call: ToolCall, *, again: bool = False, repeatable: bool = False
    ) -> ToolCall:
        """Write a tool call (see `Journal.write_tool_call`)."""
        thread = tool_call.identity.thread_id
        if (
            repeatable
            and not again
            and self._database.joins(held := self._database.held.of(thread))
        ):
            known = held.record(tool_call.id)
            if known is not None and known[0].status is not None:
                return known[0]
            if held.new and (
                known is not None or tool_call.id not in self._tool_calls_of(held, thread)
            ):
                found_by = self._as_found(tool_call)
                sealed = TOOL_CALLS.sealed(self._cipher, tool_call, tool_call.id)
                query = f"{_INSERT} DO UPDATE SET record = excluded.record"
                row = (*found_by, thread, sealed)
                stop = self._database.fence.stopping(thread, held.lease)
                self._database.defer(
                    lambda cursor: cursor.execute(query, row),
                    thread,
                    stop,
                    self._database.joined_seconds,
                )
                # readers of the table wait for the row meanwhile
                held.add_tool_call(found_by, tool_call, sealed)
                return tool_call
        return self._database.add(
            lambda cursor: self.insert_tool_call(cursor, tool_call, again=again), thread
        )

    def _as_found(self, tool_call: ToolCall) -> KnownToolCall:
        key = tool_call.idempotency_key
        return KnownToolCall(
            *(
                tool_call.id,
                tool_call.identity.step,
                self._hash(tool_call.name, tool_call.arguments),
            ),
            None if key is None else self._hash("key", key),
        )

    def insert_tool_call(
        self, cursor: Cursor, tool_call: ToolCall, *, again: bool = False
    ) -> ToolCall:
        """Write a tool call as part of another transaction."""
        found_by, sealed = (
            self._as_found(tool_call),
            TOOL_CALLS.sealed(self._cipher, tool_call, tool_call.id),
        )
        held = self._database.held.of(tool_call.identity.thread_id)
        standing = self._insert_tool_call(cursor, tool_call, found_by, sealed, held, again=again)
        if held is not None and standing is tool_call:
            held.add_tool_call(found_by, tool_call, sealed)
        return standing

    def _insert_tool_call(
        self,
        cursor: Cursor,
        tool_call: ToolCall,
        found_by: KnownToolCall,
        sealed: bytes,
        held: HeldThread | None,
        *,
        again: bool,
    ) -> ToolCall:
        known = held.record(tool_call.id) if held is not None else None
        update = "UPDATE tool_calls SET record = ? WHERE id = ? AND record = ? RETURNING 1"
        if known is not None and not again and known[0].status is not None:
            return known[0]
        if (
            known is not None
            and answered(cursor, update, (sealed, tool_call.id, known[1]), (1,)) is not None
        ):
            return tool_call
        while True:
            row = (*found_by, tool_call.identity.thread_id, sealed)
            new = None if held is not None and held.has_tool_call(tool_call.id) else (1,)
            if answered(cursor, f"{_INSERT} DO NOTHING RETURNING 1", row, new) is not None:
                return tool_call
            stored = cursor.execute(
                "SELECT record FROM tool_calls WHERE id = ?", (tool_call.id,)
            ).fetchone()
            if stored is None:  # deleted meanwhile
                continue
            standing = TOOL_CALLS.opened(self._cipher, (tool_call.id,), stored[0])
            if standing.status is not None and not again:
                return standing
            # On a server, another transaction may have ended the call since it was read.
            if cursor.execute(update, (sealed, tool_call.id, stored[0])).fetchone() is not None:
                return tool_call

    def _steps(self, thread_id: str) -> list[tuple[str, str]]:
        with self._database.read() as cursor:
            query = "SELECT id, checkpoint_id FROM tool_calls WHERE thread_id = ? ORDER BY seq"
            return [
                (str(id_), str(step))
                for id_, step in cursor.execute(query, (thread_id,)).fetchall()
            ]

    def tool_calls(self) -> list[ToolCall]:
        """All tool calls of the store, in the order in which they started."""
        return self._tool_call_rows.read("1 = 1", ())

    def tool_calls_among(
        self, ids: Sequence[str], *, steps_of: str | None = None
    ) -> Iterator[ToolCall]:
        """Tool calls by their ids, or by the ids of their steps on the thread `steps_of`."""
        for start in range(0, len(ids), 500):
            some = ids[start : start + 500]
            column, values = (
                ("id", some) if steps_of is None else ("checkpoint_id", [*some, steps_of])
            )
            and_thread = "" if steps_of is None else " AND thread_id = ?"
            yield from self._tool_call_rows.read(
                f"{column} IN ({placeholders(len(some))}){and_thread}", values
            )

    def _hash(self, *parts: Any) -> str:
        """Hash for lookups by content. It is keyed in an encrypted store, so it reveals nothing."""
        plain = content_hash(*parts)
        return (
            hash_of(0, plain.encode(), self._cipher.hash_key).hex()
            if self._cipher.hash_key
            else plain
        )

    # draws

    def draws_of_thread(self, thread_id: str) -> list[TaskDraws]:
        """Draws of a thread's tasks, in no order."""
        return self._draws.read("thread_id = ?", (thread_id,))

    def draws_of(self, header: Trajectory) -> list[TaskDraws]:
        """Draws of a run's tasks. For a fork, also those of the lineage that it inherited."""
        left = [
            draws
            for thread, steps in self.threads_behind(header)
            for draws in self.draws_of_thread(thread)
            if draws.identity.step in steps
        ]
        return left + self.draws_of_thread(header.thread_id)

    def write_draws(
        self, thread_id: str, key: tuple[str, int], record: Callable[[], TaskDraws]
    ) -> None:
        """Write the draws of a task with the next commit. They replace a previous row of the same
        key.
        """
        self._database.defer(
            lambda cursor: self._draws.insert(cursor, record(), thread_id, *key), thread_id
        )

    # overlays

    def write_overlays(self, overlays: Sequence[Overlay]) -> None:
        """Write the judgements of one training step, in one transaction."""
        rows = [self._overlays.row(o, o.run_id, o.trajectory_id, step=o.step) for o in overlays]

        def write(cursor: WriteCursor) -> None:
            if rows:
                cursor.executemany(rows[0][0], [values for _, values in rows])

        self._database.add(write)

    def overlays(self, run_id: str, step: int | None = None) -> list[Overlay]:
        """Judgements of one training run by step, or of one step only."""
        which, values = ("", (run_id,)) if step is None else (" AND step = ?", (run_id, step))
        return self._overlays.read(f"run_id = ?{which}", values)

    # trajectories

    def write_trajectory(self, trajectory: Trajectory) -> None:
        """Write a trajectory's own fields. Its calls are written one by one, as they happen.

        A trajectory that has ended is not overwritten, unless it is resumed (`RunStatus.RUNNING`).
        """
        header = HEADERS.dump(trajectory)
        row = (
            trajectory.id,
            trajectory.run_id,
            trajectory.group_id,
            trajectory.thread_id,
            trajectory.status.value,
            trajectory.started_at,
            trajectory.forked_from.trajectory_id if trajectory.forked_from else None,
            self._cipher.seal(header, HEADERS.word, trajectory.id),
        )

        held = self._database.held.of(trajectory.thread_id)
        held = held if held is not None and held.new and trajectory.forked_from is None else None

        def write(cursor: Cursor) -> None:
            query = (
                "INSERT INTO trajectories (id, run_id, group_id, thread_id, status, started_at,"
                " origin, record) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
                " status = excluded.status, record = excluded.record WHERE trajectories.status = ?"
                " OR excluded.status = ? RETURNING 1"
            )
            if (
                answered(
                    cursor, query, (*row, RunStatus.RUNNING.value, RunStatus.RUNNING.value), (1,)
                )
                is not None
            ):
                describe_thread(cursor, trajectory)
                if held is not None:
                    held.header = header

        if self._database.joins(held) and trajectory.status is RunStatus.RUNNING:
            stop = self._database.fence.stopping(trajectory.thread_id, held.lease)
            self._database.defer(write, trajectory.thread_id, stop, self._database.joined_seconds)
        else:
            self._database.add(write, trajectory.thread_id)

    def is_over(self, trajectory_id: str) -> bool:
        """True if a trajectory is on record and not running."""
        query = "SELECT 1 FROM trajectories WHERE id = ? AND status <> ?"
        with self._database.peek() as cursor:
            return (
                cursor.execute(query, (trajectory_id, RunStatus.RUNNING.value)).fetchone()
                is not None
            )

    def find_trajectory(self, trajectory_id: str, *, requests: bool = True) -> Trajectory | None:
        """Trajectory with its calls, by its own id or its thread's (None if missing). `requests`
        includes the requests of the calls.

        A thread that this process holds is answered from memory if it is known in full.
        """
        if (held := self._database.held.of(trajectory_id)) is not None and (
            all_ := held.everything()
        ) is not None:
            return self._as_read(*all_)
        both = (trajectory_id, trajectory_id)
        return next(self._trajectories("id = ? OR thread_id = ?", both, requests=requests), None)

    def _as_read(
        self,
        header: bytes,
        calls: Mapping[str, WrittenCall],
        tool_calls: Iterable[tuple[str, bytes]],
    ) -> Trajectory:
        """Trajectory as it would be read back, from what this process wrote."""
        read: list[Call] = []
        # values that several calls share are copied once, for this trajectory alone
        copied: dict[int, Any] = {}
        for id_, written in calls.items():
            shown = {"request": written.request, "tools": written.tools}
            known = {
                name: copies_of(value, copied) for name, value in shown.items() if value is not None
            }
            read.append(self._read_call(id_, *written.row).model_copy(update=known))
        tools = [TOOL_CALLS.opened(self._cipher, row[:1], row[1]) for row in tool_calls]
        return _with(HEADERS.load(header), read, tools)

    def trajectory(self, trajectory_id: str, *, requests: bool = True) -> Trajectory:
        """Trajectory with its calls, by its own id or its thread's. Raises `StoreError` if it is
        missing.
        """
        found = self.find_trajectory(trajectory_id, requests=requests)
        if found is None:
            raise StoreError(
                f"There is no trajectory {trajectory_id!r} in {self._database.url}.",
                f"`hrm-agent history --store {self._database.url}` lists what there is.",
            )
        return found

    def trajectories(
        self,
        *,
        run_id: str | None = None,
        group_id: str | None = None,
        status: RunStatus | None = None,
        on_damage: OnDamage | None = None,
        requests: bool = True,
        newest_first: bool = False,
    ) -> Iterator[Trajectory]:
        """Trajectories with their calls, in the order in which they started, or reversed.

        `on_damage` is called for an unreadable trajectory, which is then left out. By default
        `StoreError` is raised. `requests` includes the requests of the calls.
        """
        wanted = {
            "run_id": run_id,
            "group_id": group_id,
            "status": status.value if status else None,
        }
        given = {name: value for name, value in wanted.items() if value is not None}
        where = " AND ".join(f"{name} = ?" for name in given) or "1 = 1"
        values = tuple(given.values())
        return self._trajectories(
            where, values, on_damage, requests=requests, newest_first=newest_first
        )

    def count_trajectories(self, run_id: str | None = None) -> int:
        """Number of trajectories on record, readable or not."""
        where, values = ("1 = 1", ()) if run_id is None else ("run_id = ?", (run_id,))
        with self._database.read() as cursor:
            return int(
                cursor.execute(
                    f"SELECT count(*) FROM trajectories WHERE {where}", values
                ).fetchone()[0]
            )

    def forks_of(self, trajectory_id: str) -> list[Trajectory]:
        """Forks of a trajectory, in the order in which they started."""
        return list(self._trajectories("origin = ?", (trajectory_id,)))

    def _trajectories(
        self,
        where: str,
        values: Sequence[Any],
        on_damage: OnDamage | None = None,
        *,
        requests: bool = True,
        newest_first: bool = False,
    ) -> Iterator[Trajectory]:
        headers = self.headers(where, values, on_damage)
        for header in reversed(headers) if newest_first else headers:
            try:
                whole = self.with_calls(header, requests=requests)
            except StoreError as error:
                if on_damage is None:
                    raise
                on_damage(header.id, error)
                continue
            yield whole

    def with_calls(self, header: Trajectory, *, requests: bool = True) -> Trajectory:
        """Add the calls to a trajectory that `headers` returned. `requests` includes their
        requests.
        """
        calls = self._calls("c.thread_id = ?", (header.thread_id,), requests=requests)
        tool_calls = self._tool_call_rows.read("thread_id = ?", (header.thread_id,))
        if header.forked_from is not None:
            inherited_calls, inherited_tools = self._inherited(header, requests=requests)
            calls, tool_calls = inherited_calls + calls, inherited_tools + tool_calls
        return _with(header, calls, tool_calls)

    def headers(
        self, where: str = "1 = 1", values: Sequence[Any] = (), on_damage: OnDamage | None = None
    ) -> list[Trajectory]:
        """Trajectories without their calls.

        `on_damage` is called for an unreadable one, which is then left out. By default `StoreError`
        is raised.
        """
        return self._headers.read(where, values, on_damage)

    def _inherited(
        self, header: Trajectory, *, requests: bool
    ) -> tuple[list[Call], list[ToolCall]]:
        """Calls that a fork inherited, oldest first: those of the steps before the checkpoint it
        started from.
        """
        calls: list[Call] = []
        tool_calls: list[ToolCall] = []
        for thread, steps in self.threads_behind(header):
            of_thread = self._calls("c.thread_id = ?", (thread,), requests=requests)
            calls += [call for call in of_thread if call.identity.step in steps]
            tools = self._tool_call_rows.read("thread_id = ?", (thread,))
            tool_calls += [tool for tool in tools if tool.identity.step in steps]
        return calls, tool_calls

    def threads_behind(self, header: Trajectory) -> list[tuple[str, set[str]]]:
        """Threads that a fork descends from, oldest first, with the steps that it shares with
        each.
        """
        left: list[tuple[str, set[str]]] = []
        steps: set[str] | None = None
        fork, seen = header, {header.thread_id}
        while fork.forked_from is not None:
            taken = fork.forked_from.checkpoint_id
            before = self.line(fork.thread_id, "", taken).order.keys() - {taken}
            steps = before if steps is None else steps & before
            origin = self.headers("id = ?", (fork.forked_from.trajectory_id,))
            # forks may form a cycle in a forged store
            if not origin or origin[0].thread_id in seen:
                break
            fork = origin[0]
            seen.add(fork.thread_id)
            left.append((fork.thread_id, steps))
        return left[::-1]

    def line(self, thread_id: str, namespace: str, checkpoint_id: str) -> CheckpointLineage:
        held = self._database.held.of(thread_id)
        known = {} if held is None else held.parents
        line: list[str] = []
        step: str | None = checkpoint_id
        while step is not None and (namespace, step) in known:
            line.append(step)
            step = known[namespace, step]
        if step is None:
            return CheckpointLineage(
                {id_: number for number, id_ in enumerate(reversed(line))}, None
            )
        where = thread_id, namespace
        with self._database.read() as cursor:
            rows = cursor.execute(_LINE, (*where, step, *where)).fetchall()
        known.update({(namespace, str(id_)): parent for id_, parent in rows})
        order = [*(str(id_) for id_, _ in rows), *reversed(line)]
        oldest = rows[0][1] if rows else step
        return CheckpointLineage({id_: number for number, id_ in enumerate(order)}, oldest)

    def steps_of_tool_calls(self, thread_id: str) -> list[tuple[str, str]]:
        held = self._database.held.of(thread_id)
        if held is not None:
            known = self._tool_calls_of(held, thread_id).values()
            return [
                *held.inherited(lambda: self._inherited_steps(thread_id)),
                *((each.id, each.step) for each in [*known]),
            ]
        return self._inherited_steps(thread_id) + self._steps(thread_id)

    def _inherited_steps(self, thread_id: str) -> list[tuple[str, str]]:
        header = next(
            iter(self.headers("thread_id = ? AND origin IS NOT NULL", (thread_id,))), None
        )
        found: list[tuple[str, str]] = []
        for thread, steps in self.threads_behind(header) if header is not None else ():
            found += [(id_, step) for id_, step in self._steps(thread) if step in steps]
        return found


def _with(header: Trajectory, calls: Iterable[Call], tool_calls: Iterable[ToolCall]) -> Trajectory:
    """Trajectory with its calls, split into answered and failed ones."""
    answered: list[Call] = []
    failed: list[Call] = []
    for call in calls:
        (answered if call.error is None else failed).append(call)
    apart = {
        "calls": tuple(answered),
        "tool_calls": tuple(tool_calls),
        "failed_calls": tuple(failed),
    }
    return header.model_copy(update=apart)


def _as_written(
    row: tuple[bytes, bytes, bytes, bytes], call: Call, request: SentRow | None
) -> WrittenCall | None:
    """Row and request of a call that was written (None if its messages are not known in the form in
    which they would be read).
    """
    record, token_ids, mask, logprobs = row
    if request is None:
        return WrittenCall(row, None, None)
    if request.messages is None and request.has_messages:
        return None
    return WrittenCall(
        (record, token_ids if call.token_ids else None, mask, logprobs),
        request.messages,
        request.tools,
    )


class ThreadOptions:
    """Options of a store's threads."""

    def __init__(self, database: Database, cipher: Cipher) -> None:
        self._database, self._rows = database, RecordTable(OPTIONS, database, cipher)

    def write(self, thread_id: str, text: str) -> None:
        """Write the options of a thread. They replace previous ones."""
        self._database.add(lambda cursor: self.insert(cursor, thread_id, text), thread_id)

    def write_later(self, thread_id: str, text: str) -> None:
        """Write options with the next commit."""
        self._database.defer(lambda cursor: self.insert(cursor, thread_id, text))

    def insert(self, cursor: Cursor, thread_id: str, text: str) -> None:
        """Write options as part of another transaction."""
        self._rows.insert(cursor, text, thread_id)

    def read(self, thread_id: str) -> str | None:
        """Options of a thread (None if missing). Raises `StoreError` for a damaged row."""
        found = self._rows.read("thread_id = ?", (thread_id,))
        return found[0] if found else self.in_a_file(thread_id)

    def in_a_file(self, thread_id: str, trajectory_id: str = "") -> str | None:
        """Options in the file that an earlier version kept beside the store (None if missing)."""
        name = trajectory_id or content_hash("trajectory", thread_id)[:16]
        file = self._database.folder / "threads" / name / "config.toml"
        try:
            return file.read_text(encoding="utf-8")
        except OSError:
            return None


class Scorings:
    """Scorings of a store. A rubric has one scoring per trajectory. Scoring again replaces it."""

    def __init__(self, database: Database, cipher: Cipher) -> None:
        self._database, self._cipher = database, cipher
        self._rows = RecordTable(SCORINGS, database, cipher)

    def write(self, scorings: Sequence[Scoring], *, as_rewards: bool = False) -> None:
        """Write all scorings in one transaction.

        `as_rewards` also sets the rewards of the trajectories, for scoring by the run that made
        them. A trajectory that has rewards keeps them.
        """

        def write(cursor: Cursor) -> None:
            for scoring in scorings:
                self._rows.insert(cursor, scoring, scoring.rubric, scoring.trajectory_id)
                if as_rewards:
                    self._as_rewards(cursor, scoring)

        self._database.write(write)

    def amend(
        self, rubric: str, trajectory_id: str, change: Callable[[Scoring | None], Scoring | None]
    ) -> Scoring | None:
        """Replace a scoring by the result of `change`, in one transaction (None keeps it).

        `change` may be called again if a commit was lost. Returns the scoring that is then on
        record.
        """
        place = (rubric, trajectory_id)

        def write(cursor: WriteCursor) -> Scoring | None:
            self._database.lock_thread(cursor, f"scoring:{trajectory_id}")
            rows = self._rows.query(cursor, "rubric = ? AND trajectory_id = ?", place)
            standing = next((found for _, found in SCORINGS.rows(self._cipher, rows)), None)
            changed = change(standing)
            if changed is not None:
                self._rows.insert(cursor, changed, *place)
            return changed or standing

        return self._database.write(write)

    def _as_rewards(self, cursor: Cursor, scoring: Scoring) -> None:
        id_ = scoring.trajectory_id
        row = cursor.execute("SELECT record FROM trajectories WHERE id = ?", (id_,)).fetchone()
        if row is None or not scoring.rewards:
            return
        header = HEADERS.opened(self._cipher, (id_,), row[0])
        if not header.rewards:
            scored = header.model_copy(update={"rewards": scoring.rewards})
            sealed = HEADERS.sealed(self._cipher, scored, id_)
            cursor.execute("UPDATE trajectories SET record = ? WHERE id = ?", (sealed, id_))

    def rubrics(self) -> list[str]:
        """Rubrics with at least one scoring, in the order of their first scores."""
        with self._database.read() as cursor:
            rows = cursor.execute(
                "SELECT rubric FROM scorings GROUP BY rubric ORDER BY min(seq)"
            ).fetchall()
        return [str(rubric) for (rubric,) in rows]

    def by_rubric(self, rubric: str) -> dict[str, Scoring]:
        """Scorings by one rubric, by trajectory id."""
        return {found.trajectory_id: found for found in self._rows.read("rubric = ?", (rubric,))}

    def trajectory_ids(self, rubric: str, at_least: float) -> list[str]:
        """Ids of the trajectories whose reward by a rubric is at least `at_least`, in the order in
        which they were first scored.
        """
        found = self._rows.read("rubric = ?", (rubric,))
        return [s.trajectory_id for s in found if s.rewards and s.rewards["reward"] >= at_least]

    def of(self, trajectory_id: str) -> list[Scoring]:
        """Scorings of one trajectory, oldest first."""
        return self._rows.read("trajectory_id = ?", (trajectory_id,))
