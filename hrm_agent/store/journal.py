"""The journal: model calls, tool calls, trajectories and overlays, beside the checkpoints in the same database.

Tokens lie in a table of their own, as little-endian int32 and float32 bytes. The graph state carries only the call's id
(inside the message), which keeps checkpoints as small as without tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hrm_agent.errors import StoreError
from hrm_agent.store.cipher import Cipher
from hrm_agent.store.cursors import Cursor, answered, placeholders
from hrm_agent.store.damage import OnDamage, reading
from hrm_agent.store.database import Database
from hrm_agent.store.draws import DrawsJournal
from hrm_agent.store.held_threads import WrittenCall
from hrm_agent.store.overlays import OverlaysJournal
from hrm_agent.store.packed_records import plain_mask, plain_numbers, plain_record
from hrm_agent.store.sent_requests import Sent, copies_of, json_dump, read_requests
from hrm_agent.store.stored_messages import NeedsItsType, PlainMessages
from hrm_agent.store.threads import describe_thread
from hrm_agent.store.tool_calls import ToolCallsJournal
from hrm_agent.store.value_reader import read_values
from hrm_agent.trajectory import (
    Call,
    CheckpointLineage,
    RunStatus,
    ToolCall,
    Trajectory,
)

if TYPE_CHECKING:
    from hrm_agent.store.requests import RequestStore, SentRow
    from hrm_agent.store.serializer import StrictSerializer

__all__ = ["StoreJournal"]

_APART = {"token_ids", "mask", "logprobs", "request", "tools"}
"""Fields of a call that have rows of their own. Older stores have the request in the record."""
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


class StoreJournal(DrawsJournal, OverlaysJournal, ToolCallsJournal):
    """The journal of a run store. Every write is committed when it returns, but for draws and a run's joined steps."""

    def __init__(self, database: Database, cipher: Cipher, requests: Callable[[], RequestStore]) -> None:
        """`requests` is called where one is written, or has unusual messages: it imports LangGraph."""
        self._database, self._cipher, self._requests = database, cipher, requests
        self.is_blocking = database.is_blocking
        """A write waits for a disk or a server: an event loop hands it to a thread."""

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
        """Model calls by their ids, or by the ids of their steps on the thread `steps_of`, without requests."""
        for start in range(0, len(ids), 500):
            some = ids[start : start + 500]
            column, values = ("id", some) if steps_of is None else ("checkpoint_id", [*some, steps_of])
            and_thread = "" if steps_of is None else " AND c.thread_id = ?"
            yield from self._calls(f"c.{column} IN ({placeholders(len(some))}){and_thread}", values, requests=False)

    def has_call(self, call_id: str) -> bool:
        """Whether a model call is on record, readable or not."""
        with self._database.read() as cursor:
            return cursor.execute("SELECT 1 FROM calls WHERE id = ?", (call_id,)).fetchone() is not None

    def path_tokens(self, call_id: str) -> tuple[int, ...]:
        with self._database.read() as cursor:
            deltas = cursor.execute(_PATH_QUERY, (call_id,)).fetchall()
        if not deltas:
            raise KeyError(call_id)
        with reading("model call", call_id):
            opened = (plain_numbers(self._cipher.open(delta, "tokens", id_)) for id_, delta in deltas)
            return tuple(array("i", b"".join(opened)))

    def write_call(self, call: Call, sent: Sequence[Any] = ()) -> Call:
        record, tokens = self._sealed_call(call)
        identity, messages = call.identity, sent or call.request
        held = self._database.held.of(identity.thread_id)

        def insert(cursor: Cursor, request: SentRow | None = None) -> bool:
            query = (
                "INSERT INTO calls (id, thread_id, task_id, checkpoint_id, parent, seed, record) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING RETURNING 1"
            )
            row = (call.id, identity.thread_id, identity.task_id, identity.step, call.parent, call.seed, record)
            written = answered(cursor, query, row, (1,)) is not None
            if written and (call.token_ids or request is None):  # each call has one of them, else its row is lost
                cursor.execute(
                    "INSERT INTO tokens (call_id, token_ids, mask, logprobs) VALUES (?, ?, ?, ?)", (call.id, *tokens)
                )
            if written and request is not None:
                sealed = self._cipher.seal(request.data, "request", call.id)
                cursor.execute("INSERT INTO requests (call_id, data) VALUES (?, ?)", (call.id, sealed))
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

    def _sealed_call(self, call: Call) -> tuple[bytes, tuple[bytes, bytes, bytes]]:
        seal = self._cipher.seal
        return seal(call.model_dump_json(exclude=_APART).encode(), "call", call.id), (
            seal(array("i", call.token_ids).tobytes(), "tokens", call.id),
            seal(bytes(call.mask), "mask", call.id),
            seal(array("f", call.logprobs).tobytes(), "logprobs", call.id),
        )

    def _calls(self, where: str, values: Sequence[Any], *, requests: bool = True) -> list[Call]:
        with self._database.read() as cursor:
            rows = cursor.execute(f"{_CALLS} WHERE {where} ORDER BY c.seq", values).fetchall()
            named = {str(id_): data for id_, *_, data in rows if data is not None and requests}
            sent = self._sent(cursor, named) if named else {}
        calls = [self._read_call(*row) for *row, _ in rows]
        return [call.model_copy(update=sent[call.id]) if call.id in sent else call for call in calls]

    def _sent(self, cursor: Cursor, rows: Mapping[str, bytes]) -> Sent:
        """Without LangGraph, which takes most of a second to import, where the messages are plain."""
        try:
            reader = read_values(cursor, self._cipher, PlainMessages(), shared=True)
            return read_requests(reader, self._cipher, rows, json_dump)
        except NeedsItsType:
            return self._requests().read(cursor, rows)

    def _read_call(self, id_: str, record: bytes, token_ids: bytes | None, mask: bytes, logprobs: bytes) -> Call:
        opened = self._cipher.open
        with reading("model call", id_):
            call = Call.model_validate_json(plain_record(opened(record, "call", id_)))
            if token_ids is None:
                return call
            tokens = {
                "token_ids": tuple(array("i", plain_numbers(opened(token_ids, "tokens", id_)))),
                "mask": tuple(map(bool, plain_mask(opened(mask, "mask", id_)))),
                "logprobs": tuple(array("f", plain_numbers(opened(logprobs, "logprobs", id_)))),
            }
        return call.model_copy(update=tokens)

    # trajectories

    def write_trajectory(self, trajectory: Trajectory) -> None:
        """Write a trajectory's own fields; its calls are written one by one, as they happen.

        One that has ended stands, unless it is taken up again (`RunStatus.RUNNING`).
        """
        header = trajectory.model_dump_json(exclude={"calls", "tool_calls", "failed_calls"}).encode()
        row = (
            *(trajectory.id, trajectory.run_id, trajectory.group_id, trajectory.thread_id, trajectory.status.value),
            *(trajectory.started_at, trajectory.forked_from.trajectory_id if trajectory.forked_from else None),
            self._cipher.seal(header, "trajectory", trajectory.id),
        )

        held = self._database.held.of(trajectory.thread_id)
        held = held if held is not None and held.new and trajectory.forked_from is None else None

        def write(cursor: Cursor) -> None:
            query = (
                "INSERT INTO trajectories (id, run_id, group_id, thread_id, status, started_at, origin, record) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET status = excluded.status, record = excluded.record "
                "WHERE trajectories.status = ? OR excluded.status = ? RETURNING 1"
            )
            if answered(cursor, query, (*row, RunStatus.RUNNING.value, RunStatus.RUNNING.value), (1,)) is not None:
                describe_thread(cursor, trajectory)
                if held is not None:
                    held.header = header

        if self._database.joins(held) and trajectory.status is RunStatus.RUNNING:
            stop = self._database.fence.stopping(trajectory.thread_id, held.lease)
            self._database.defer(write, trajectory.thread_id, stop, self._database.joined_seconds)
        else:
            self._database.add(write, trajectory.thread_id)

    def is_over(self, trajectory_id: str) -> bool:
        """Whether a trajectory is on record and not under way."""
        query = "SELECT 1 FROM trajectories WHERE id = ? AND status <> ?"
        with self._database.peek() as cursor:
            return cursor.execute(query, (trajectory_id, RunStatus.RUNNING.value)).fetchone() is not None

    def find_trajectory(self, trajectory_id: str, *, requests: bool = True) -> Trajectory | None:
        """A trajectory with its calls, by its id or by its thread's. `requests`: with what the calls were sent.

        By the thread's it is not read where it is known here.
        """
        if (held := self._database.held.of(trajectory_id)) is not None and (all_ := held.everything()) is not None:
            return self._as_read(*all_)
        both = (trajectory_id, trajectory_id)
        return next(self._trajectories("id = ? OR thread_id = ?", both, requests=requests), None)

    def _as_read(
        self, header: bytes, calls: Mapping[str, WrittenCall], tool_calls: Iterable[tuple[str, bytes]]
    ) -> Trajectory:
        """What was written, as it would be read."""
        read: list[Call] = []
        copied: dict[int, Any] = {}  # what several calls sent is one object, of this trajectory alone
        for id_, written in calls.items():
            shown = {"request": written.request, "tools": written.tools}
            known = {name: copies_of(value, copied) for name, value in shown.items() if value is not None}
            read.append(self._read_call(id_, *written.row).model_copy(update=known))
        tools = tuple(self._read_tool_call(id_, record) for id_, record in tool_calls)
        return _with(Trajectory.model_validate_json(header), read, tools)

    def trajectory(self, trajectory_id: str, *, requests: bool = True) -> Trajectory:
        """Like `find_trajectory`, but a missing one is a `StoreError`."""
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
        """Trajectories with their calls, in the order in which they were begun, or reversed.

        `on_damage`: called for one that cannot be read, which is left out; None raises `StoreError`. `requests`: with
        the requests of the calls.
        """
        wanted = {"run_id": run_id, "group_id": group_id, "status": status.value if status else None}
        given = {name: value for name, value in wanted.items() if value is not None}
        where = " AND ".join(f"{name} = ?" for name in given) or "1 = 1"
        values = tuple(given.values())
        return self._trajectories(where, values, on_damage, requests=requests, newest_first=newest_first)

    def count_trajectories(self, run_id: str | None = None) -> int:
        """Number of trajectories on record, readable or not."""
        where, values = ("1 = 1", ()) if run_id is None else ("run_id = ?", (run_id,))
        with self._database.read() as cursor:
            return int(cursor.execute(f"SELECT count(*) FROM trajectories WHERE {where}", values).fetchone()[0])

    def forks_of(self, trajectory_id: str) -> list[Trajectory]:
        """The trajectories that were forked from one, in the order in which they were begun."""
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
        """The trajectory of which `headers` gave the header. `requests`: as for `trajectories`."""
        calls = self._calls("c.thread_id = ?", (header.thread_id,), requests=requests)
        tool_calls = self._tool_calls("thread_id = ?", (header.thread_id,))
        if header.forked_from is not None:
            inherited_calls, inherited_tools = self._inherited(header, requests=requests)
            calls, tool_calls = inherited_calls + calls, inherited_tools + tool_calls
        return _with(header, calls, tool_calls)

    def headers(
        self, where: str = "1 = 1", values: Sequence[Any] = (), on_damage: OnDamage | None = None
    ) -> list[Trajectory]:
        """Trajectories without their calls. `on_damage`: as for `trajectories`."""
        with self._database.read() as cursor:
            query = f"SELECT id, record FROM trajectories WHERE {where} ORDER BY seq"
            rows = cursor.execute(query, values).fetchall()
        found: list[Trajectory] = []
        for id_, record in rows:
            try:
                with reading("trajectory", id_):
                    header = plain_record(self._cipher.open(record, "trajectory", id_))
                    found.append(Trajectory.model_validate_json(header))
            except StoreError as error:
                if on_damage is None:
                    raise
                on_damage(id_, error)
        return found

    def _inherited(self, header: Trajectory, *, requests: bool) -> tuple[list[Call], list[ToolCall]]:
        """The calls of the lineage that a fork left, oldest first: those of the steps before the checkpoint it took."""
        calls: list[Call] = []
        tool_calls: list[ToolCall] = []
        for thread, steps in self.threads_behind(header):
            of_thread = self._calls("c.thread_id = ?", (thread,), requests=requests)
            calls += [call for call in of_thread if call.identity.step in steps]
            tools = self._tool_calls("thread_id = ?", (thread,))
            tool_calls += [tool for tool in tools if tool.identity.step in steps]
        return calls, tool_calls

    def threads_behind(self, header: Trajectory) -> list[tuple[str, set[str]]]:
        """The threads that a fork has behind it, the oldest first, with the steps that it shares with each."""
        left: list[tuple[str, set[str]]] = []
        steps: set[str] | None = None
        fork, seen = header, {header.thread_id}
        while fork.forked_from is not None:
            taken = fork.forked_from.checkpoint_id
            before = self.line(fork.thread_id, "", taken).order.keys() - {taken}
            steps = before if steps is None else steps & before
            origin = self.headers("id = ?", (fork.forked_from.trajectory_id,))
            if not origin or origin[0].thread_id in seen:  # in a forged store forks may go round in a circle
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
            return CheckpointLineage({id_: number for number, id_ in enumerate(reversed(line))}, None)
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
        header = next(iter(self.headers("thread_id = ? AND origin IS NOT NULL", (thread_id,))), None)
        found: list[tuple[str, str]] = []
        for thread, steps in self.threads_behind(header) if header is not None else ():
            found += [(id_, step) for id_, step in self._steps(thread) if step in steps]
        return found


def _with(header: Trajectory, calls: Iterable[Call], tool_calls: Iterable[ToolCall]) -> Trajectory:
    """A trajectory with its calls, split into answered and failed ones."""
    answered: list[Call] = []
    failed: list[Call] = []
    for call in calls:
        (answered if call.error is None else failed).append(call)
    apart = {"calls": tuple(answered), "tool_calls": tuple(tool_calls), "failed_calls": tuple(failed)}
    return header.model_copy(update=apart)


def _as_written(row: tuple[bytes, bytes, bytes, bytes], call: Call, request: SentRow | None) -> WrittenCall | None:
    """None for a call that has something inside which is not known as it would be read."""
    record, token_ids, mask, logprobs = row
    if request is None:
        return WrittenCall(row, None, None)
    if request.messages is None and request.has_messages:
        return None
    return WrittenCall((record, token_ids if call.token_ids else None, mask, logprobs), request.messages, request.tools)
