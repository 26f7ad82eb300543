"""The journal: model calls, tool calls, trajectories and overlays, beside the checkpoints in the same database.

Tokens lie in a table of their own, as little-endian int32 and float32 bytes. The graph state carries only the call's id
(inside the message), which keeps checkpoints as small as without tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hrm_agent.errors import StoreError
from hrm_agent.store.cipher import Cipher
from hrm_agent.store.damage import OnDamage, reading
from hrm_agent.store.database import Cursor, Database
from hrm_agent.store.draws import DrawsJournal
from hrm_agent.store.hashing import hash_of
from hrm_agent.store.overlays import OverlaysJournal
from hrm_agent.store.threads import describe_thread
from hrm_agent.trajectory import (
    Call,
    CheckpointLineage,
    RunStatus,
    ToolCall,
    ToolStatus,
    Trajectory,
    content_hash,
)

if TYPE_CHECKING:
    from hrm_agent.store.requests import RequestStore

__all__ = ["StoreJournal"]

_APART = {"token_ids", "mask", "logprobs", "request", "tools"}
"""Fields of a call that have rows of their own. Older stores have the request in the record."""
_CALLS = (
    "SELECT c.id, c.record, t.token_ids, t.mask, t.logprobs, r.data FROM calls c "
    "LEFT JOIN tokens t ON t.call_id = c.id LEFT JOIN requests r ON r.call_id = c.id"
)
_TOOL_CALLS = "SELECT id, record FROM tool_calls"
_PATH_QUERY = """
WITH RECURSIVE path (id, parent, depth) AS (
    SELECT id, parent, 0 FROM calls WHERE id = ?
    UNION ALL SELECT c.id, c.parent, p.depth + 1 FROM calls c JOIN path p ON c.id = p.parent
)
SELECT path.id, t.token_ids FROM path JOIN tokens t ON t.call_id = path.id ORDER BY path.depth DESC
"""
_LINE = """
WITH RECURSIVE line (id, parent_id, depth) AS (
    SELECT id, parent_id, 0 FROM checkpoints WHERE thread_id = ? AND ns = ? AND id = ?
    UNION ALL SELECT c.id, c.parent_id, l.depth + 1 FROM checkpoints c JOIN line l ON c.id = l.parent_id
    WHERE c.thread_id = ? AND c.ns = ?
)
SELECT id, parent_id FROM line ORDER BY depth DESC
"""


class StoreJournal(DrawsJournal, OverlaysJournal):
    """The journal of a run store. Every write is committed when it returns."""

    def __init__(self, database: Database, cipher: Cipher, requests: Callable[[], RequestStore]) -> None:
        """`requests` is called where a call has one: what it needs takes LangGraph, and most of a second, to import."""
        self._database, self._cipher, self._requests = database, cipher, requests
        self.is_blocking = database.is_blocking
        """A write waits for a disk or a server: an event loop hands it to a thread."""

    # model calls

    def calls_of_task(self, thread_id: str, task_id: str) -> Sequence[Call]:
        calls = self._calls("c.thread_id = ? AND c.task_id = ?", (thread_id, task_id))
        return sorted(calls, key=lambda call: call.call_index)

    def tasks_of_thread(self, thread_id: str) -> set[str]:
        query = "SELECT DISTINCT task_id FROM calls WHERE thread_id = ?"
        with self._database.read() as cursor:
            return {str(task) for (task,) in cursor.execute(query, (thread_id,)).fetchall()}

    def seeds_of_thread(self, thread_id: str) -> set[int]:
        query = "SELECT seed FROM calls WHERE thread_id = ? AND seed IS NOT NULL"
        with self._database.read() as cursor:
            return {int(seed) for (seed,) in cursor.execute(query, (thread_id,)).fetchall()}

    def find_call(self, call_id: str, *, request: bool = True) -> Call | None:
        return next(iter(self._calls("c.id = ?", (call_id,), requests=request)), None)

    def has_call(self, call_id: str) -> bool:
        """Whether a model call is on record, readable or not."""
        with self._database.read() as cursor:
            return cursor.execute("SELECT 1 FROM calls WHERE id = ?", (call_id,)).fetchone() is not None

    def path_tokens(self, call_id: str) -> tuple[int, ...]:
        with self._database.read() as cursor:
            deltas = cursor.execute(_PATH_QUERY, (call_id,)).fetchall()
        if not deltas:
            raise KeyError(call_id)
        return tuple(array("i", b"".join(self._cipher.open(delta, "tokens", id_) for id_, delta in deltas)))

    def write_call(self, call: Call, sent: Sequence[Any] = ()) -> Call:
        record, tokens = self._sealed_call(call)
        identity, messages = call.identity, sent or call.request

        def insert(cursor: Cursor, request: bytes | None = None) -> bool:
            cursor.execute(
                "INSERT INTO calls (id, thread_id, task_id, checkpoint_id, parent, seed, record) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING RETURNING 1",
                (
                    *(call.id, identity.thread_id, identity.task_id),
                    *(identity.step, call.parent, call.seed),
                    record,
                ),
            )
            written = cursor.fetchone() is not None
            if written and (call.token_ids or request is None):  # each call has one of them, else its row is lost
                cursor.execute(
                    "INSERT INTO tokens (call_id, token_ids, mask, logprobs) VALUES (?, ?, ?, ?)", (call.id, *tokens)
                )
            if written and request is not None:
                sealed = self._cipher.seal(request, "request", call.id)
                cursor.execute("INSERT INTO requests (call_id, data) VALUES (?, ?)", (call.id, sealed))
            return written

        if messages is None and call.tools is None:
            done = self._database.submit(insert, identity.thread_id)
        else:
            done = self._requests().write(messages, call.tools, insert, identity.thread_id)
        return call if done.result() else (self.find_call(call.id) or call)

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
            sent = self._requests().read(cursor, named) if named else {}
        calls = [self._read_call(*row) for *row, _ in rows]
        return [call.model_copy(update=sent[call.id]) if call.id in sent else call for call in calls]

    def _read_call(self, id_: str, record: bytes, token_ids: bytes | None, mask: bytes, logprobs: bytes) -> Call:
        opened = self._cipher.open
        with reading("model call", id_):
            call = Call.model_validate_json(opened(record, "call", id_))
            if token_ids is None:
                return call
            tokens = {
                "token_ids": tuple(array("i", opened(token_ids, "tokens", id_))),
                "mask": tuple(map(bool, opened(mask, "mask", id_))),
                "logprobs": tuple(array("f", opened(logprobs, "logprobs", id_))),
            }
        return call.model_copy(update=tokens)

    # tool calls

    def find_tool_call(self, record_id: str) -> ToolCall | None:
        return next(iter(self._tool_calls("id = ?", (record_id,))), None)

    def find_repeat(self, thread_id: str, name: str, arguments: dict[str, Any] | str) -> str | None:
        query = "SELECT id FROM tool_calls WHERE thread_id = ? AND arguments_hash = ? ORDER BY seq LIMIT 1"
        with self._database.read() as cursor:
            found = cursor.execute(query, (thread_id, self._hash(name, arguments))).fetchone()
        return str(found[0]) if found else None

    def find_by_key(self, thread_id: str, key: str) -> ToolCall | None:
        found = self._tool_calls("thread_id = ? AND key_hash = ?", (thread_id, self._hash("key", key)))
        return max(found, key=lambda call: call.status is ToolStatus.OK, default=None)

    def write_tool_call(self, tool_call: ToolCall, *, again: bool = False) -> ToolCall:
        """As `Journal.write_tool_call`."""
        thread = tool_call.identity.thread_id
        return self._database.write(lambda cursor: self.insert_tool_call(cursor, tool_call, again=again), thread)

    def insert_tool_call(self, cursor: Cursor, tool_call: ToolCall, *, again: bool = False) -> ToolCall:
        """The same as part of another transaction."""
        identity, key = tool_call.identity, tool_call.idempotency_key
        sealed = self._cipher.seal(tool_call.model_dump_json().encode(), "tool", tool_call.id)
        while True:
            cursor.execute(
                "INSERT INTO tool_calls (id, thread_id, checkpoint_id, arguments_hash, key_hash, record) "
                "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING RETURNING 1",
                (
                    *(tool_call.id, identity.thread_id, identity.step),
                    self._hash(tool_call.name, tool_call.arguments),
                    None if key is None else self._hash("key", key),
                    sealed,
                ),
            )
            if cursor.fetchone() is not None:
                return tool_call
            stored = cursor.execute("SELECT record FROM tool_calls WHERE id = ?", (tool_call.id,)).fetchone()
            if stored is None:  # deleted meanwhile
                continue
            standing = self._read_tool_call(tool_call.id, stored[0])
            if standing.status is not None and not again:
                return standing
            # On a server another transaction may have ended it since it was looked at.
            query = "UPDATE tool_calls SET record = ? WHERE id = ? AND record = ? RETURNING 1"
            if cursor.execute(query, (sealed, tool_call.id, stored[0])).fetchone() is not None:
                return tool_call

    def tool_calls(self) -> list[ToolCall]:
        """All tool calls of the store, in the order in which they were started."""
        return self._tool_calls("1 = 1", ())

    def _hash(self, *parts: Any) -> str:
        """Of what is looked up by its content. In an encrypted store it betrays nothing."""
        plain = content_hash(*parts)
        return hash_of(0, plain.encode(), self._cipher.hash_key).hex() if self._cipher.hash_key else plain

    def _tool_calls(self, where: str, values: Sequence[Any]) -> list[ToolCall]:
        with self._database.read() as cursor:
            rows = cursor.execute(f"{_TOOL_CALLS} WHERE {where} ORDER BY seq", values).fetchall()
        return [self._read_tool_call(id_, record) for id_, record in rows]

    def _read_tool_call(self, id_: str, record: bytes) -> ToolCall:
        with reading("tool call", id_):
            return ToolCall.model_validate_json(self._cipher.open(record, "tool", id_))

    # trajectories

    def write_trajectory(self, trajectory: Trajectory) -> None:
        """Write a trajectory's own fields; its calls are written one by one, as they happen.

        One that has ended stands, unless it is taken up again (`RunStatus.RUNNING`).
        """
        header = trajectory.model_dump_json(exclude={"calls", "tool_calls"}).encode()
        row = (
            *(trajectory.id, trajectory.run_id, trajectory.group_id, trajectory.thread_id, trajectory.status.value),
            *(trajectory.started_at, trajectory.forked_from.trajectory_id if trajectory.forked_from else None),
            self._cipher.seal(header, "trajectory", trajectory.id),
        )

        def write(cursor: Cursor) -> None:
            cursor.execute(
                "INSERT INTO trajectories (id, run_id, group_id, thread_id, status, started_at, origin, record) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET status = excluded.status, record = excluded.record "
                "WHERE trajectories.status = ? OR excluded.status = ? RETURNING 1",
                (*row, RunStatus.RUNNING.value, RunStatus.RUNNING.value),
            )
            if cursor.fetchone() is not None:
                describe_thread(cursor, trajectory)

        self._database.write(write, trajectory.thread_id)

    def find_trajectory(self, trajectory_id: str, *, requests: bool = True) -> Trajectory | None:
        """A trajectory with its calls, by its id or by its thread's. `requests`: with what the calls were sent."""
        both = (trajectory_id, trajectory_id)
        return next(self._trajectories("id = ? OR thread_id = ?", both, requests=requests), None)

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
    ) -> Iterator[Trajectory]:
        """Trajectories with their calls, in the order in which they were begun.

        `on_damage`: told of one that cannot be read, and the others follow; None raises `StoreError`. `requests`: with
        what the calls were sent, which takes LangGraph and most of a second to read.
        """
        wanted = {"run_id": run_id, "group_id": group_id, "status": status.value if status else None}
        given = {name: value for name, value in wanted.items() if value is not None}
        where = " AND ".join(f"{name} = ?" for name in given) or "1 = 1"
        return self._trajectories(where, tuple(given.values()), on_damage, requests=requests)

    def forks_of(self, trajectory_id: str) -> list[Trajectory]:
        """The trajectories that were forked from one, in the order in which they were begun."""
        return list(self._trajectories("origin = ?", (trajectory_id,)))

    def _trajectories(
        self, where: str, values: Sequence[Any], on_damage: OnDamage | None = None, *, requests: bool = True
    ) -> Iterator[Trajectory]:
        for header in self.headers(where, values, on_damage):
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
        return header.model_copy(update={"calls": tuple(calls), "tool_calls": tuple(tool_calls)})

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
                    found.append(Trajectory.model_validate_json(self._cipher.open(record, "trajectory", id_)))
            except StoreError as error:
                if on_damage is None:
                    raise
                on_damage(id_, error)
        return found

    def _inherited(self, header: Trajectory, *, requests: bool) -> tuple[list[Call], list[ToolCall]]:
        """The calls of the lineage that a fork left, oldest first: those of the steps before the checkpoint it took."""
        calls: list[Call] = []
        tool_calls: list[ToolCall] = []
        for thread, steps in self._left(header):
            of_thread = self._calls("c.thread_id = ?", (thread,), requests=requests)
            calls += [call for call in of_thread if call.identity.step in steps]
            tools = self._tool_calls("thread_id = ?", (thread,))
            tool_calls += [tool for tool in tools if tool.identity.step in steps]
        return calls, tool_calls

    def _left(self, header: Trajectory) -> list[tuple[str, set[str]]]:
        """The threads that a fork has behind it, the oldest first, with the steps that it shares with each."""
        left: list[tuple[str, set[str]]] = []
        steps: set[str] | None = None
        fork: Trajectory | None = header
        while fork is not None and fork.forked_from is not None:
            taken = fork.forked_from.checkpoint_id
            before = self.line(fork.thread_id, "", taken).order.keys() - {taken}
            steps = before if steps is None else steps & before
            fork = next(iter(self.headers("id = ?", (fork.forked_from.trajectory_id,))), None)
            if fork is not None:
                left.append((fork.thread_id, steps))
        return left[::-1]

    def line(self, thread_id: str, namespace: str, checkpoint_id: str) -> CheckpointLineage:
        where = thread_id, namespace
        with self._database.read() as cursor:
            rows = cursor.execute(_LINE, (*where, checkpoint_id, *where)).fetchall()
        order = {str(id_): number for number, (id_, _) in enumerate(rows)}
        return CheckpointLineage(order, rows[0][1] if rows else checkpoint_id)

    def steps_of_tool_calls(self, thread_id: str) -> list[tuple[str, str]]:
        header = next(iter(self.headers("thread_id = ? AND origin IS NOT NULL", (thread_id,))), None)
        found: list[tuple[str, str]] = []
        for thread, steps in self._left(header) if header is not None else ():
            found += [(id_, step) for id_, step in self._steps(thread) if step in steps]
        return found + self._steps(thread_id)

    def _steps(self, thread_id: str) -> list[tuple[str, str]]:
        with self._database.read() as cursor:
            query = "SELECT id, checkpoint_id FROM tool_calls WHERE thread_id = ? ORDER BY seq"
            return [(str(id_), str(step)) for id_, step in cursor.execute(query, (thread_id,)).fetchall()]
