"""The journal: model calls, tool calls, trajectories and overlays, beside the checkpoints in the same file.

Tokens lie in a table of their own, as little-endian int32 and float32 bytes. The graph state carries only the call's id
(inside the message), which keeps checkpoints as small as without tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from hrm_agent.errors import StoreError
from hrm_agent.store.database import Database
from hrm_agent.trajectory import Call, Overlay, RunStatus, ToolCall, Trajectory, content_hash

__all__ = ["SqliteJournal"]

_TOKEN_FIELDS = {"token_ids", "mask", "logprobs"}
_CALL_COLUMNS = "c.record, t.token_ids, t.mask, t.logprobs FROM calls c JOIN tokens t ON t.call_id = c.id"
_PATH_QUERY = """
WITH RECURSIVE path (id, parent, depth) AS (
    SELECT id, parent, 0 FROM calls WHERE id = ?
    UNION ALL SELECT c.id, c.parent, p.depth + 1 FROM calls c JOIN path p ON c.id = p.parent
)
SELECT t.token_ids FROM path JOIN tokens t ON t.call_id = path.id ORDER BY path.depth DESC
"""


class SqliteJournal:
    """The journal of a run store. Every write is committed when it returns."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # model calls

    def calls_of_task(self, thread_id: str, task_id: str) -> Sequence[Call]:
        calls = self._calls("c.thread_id = ? AND c.task_id = ?", (thread_id, task_id))
        return sorted(calls, key=lambda call: call.call_index)

    def seeds_of_thread(self, thread_id: str) -> set[int]:
        query = "SELECT json_extract(record, '$.sampling.seed') FROM calls WHERE thread_id = ?"
        with self._database.cursor(transaction=False) as cursor:
            return {seed for (seed,) in cursor.execute(query, (thread_id,)) if seed is not None}

    def find_call(self, call_id: str) -> Call | None:
        return next(iter(self._calls("c.id = ?", (call_id,))), None)

    def path_tokens(self, call_id: str) -> tuple[int, ...]:
        with self._database.cursor(transaction=False) as cursor:
            deltas = cursor.execute(_PATH_QUERY, (call_id,)).fetchall()
        if not deltas:
            raise KeyError(call_id)
        return tuple(token for (delta,) in deltas for token in array("i", delta))

    def write_call(self, call: Call) -> Call:
        record = call.model_dump_json(exclude=_TOKEN_FIELDS)
        tokens = (array("i", call.token_ids).tobytes(), bytes(call.mask), array("f", call.logprobs).tobytes())
        with self._database.cursor() as cursor:
            cursor.execute(
                "INSERT OR IGNORE INTO calls (id, thread_id, task_id, parent, record) VALUES (?, ?, ?, ?, ?)",
                (call.id, call.identity.thread_id, call.identity.task_id, call.parent, record),
            )
            written = cursor.rowcount == 1
            if written:
                cursor.execute("INSERT INTO tokens VALUES (?, ?, ?, ?)", (call.id, *tokens))
        return call if written else (self.find_call(call.id) or call)

    def _calls(self, where: str, values: tuple[str, ...]) -> list[Call]:
        with self._database.cursor(transaction=False) as cursor:
            rows = cursor.execute(f"SELECT {_CALL_COLUMNS} WHERE {where} ORDER BY c.seq", values).fetchall()
        return [_read_call(*row) for row in rows]

    # tool calls

    def find_tool_call(self, record_id: str) -> ToolCall | None:
        return next(iter(self._tool_calls("id = ?", (record_id,))), None)

    def find_repeat(self, thread_id: str, name: str, arguments: dict[str, Any] | str) -> str | None:
        found = self._tool_calls("thread_id = ? AND arguments_hash = ?", (thread_id, content_hash(name, arguments)))
        return found[0].id if found else None

    def write_tool_call(self, tool_call: ToolCall) -> None:
        with self._database.cursor() as cursor:
            cursor.execute(
                "INSERT INTO tool_calls (id, thread_id, arguments_hash, record) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET record = excluded.record",
                (
                    tool_call.id,
                    tool_call.identity.thread_id,
                    content_hash(tool_call.name, tool_call.arguments),
                    tool_call.model_dump_json(),
                ),
            )

    def _tool_calls(self, where: str, values: tuple[str, ...]) -> list[ToolCall]:
        with self._database.cursor(transaction=False) as cursor:
            rows = cursor.execute(f"SELECT record FROM tool_calls WHERE {where} ORDER BY seq", values).fetchall()
        return [ToolCall.model_validate_json(record) for (record,) in rows]

    # trajectories

    def write_trajectory(self, trajectory: Trajectory) -> None:
        """Write or replace a trajectory's own fields; its calls are written one by one, as they happen."""
        record = trajectory.model_dump_json(exclude={"calls", "tool_calls"})
        with self._database.cursor() as cursor:
            cursor.execute(
                "INSERT INTO trajectories VALUES (?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET status = excluded.status, record = excluded.record",
                (
                    trajectory.id,
                    trajectory.run_id,
                    trajectory.group_id,
                    trajectory.thread_id,
                    trajectory.status.value,
                    record,
                ),
            )

    def find_trajectory(self, trajectory_id: str) -> Trajectory | None:
        """A trajectory with its calls, by its id or by its thread's."""
        return next(self._trajectories("id = ?1 OR thread_id = ?1", (trajectory_id,)), None)

    def trajectory(self, trajectory_id: str) -> Trajectory:
        """Like `find_trajectory`, but a missing one is a `StoreError`."""
        found = self.find_trajectory(trajectory_id)
        if found is None:
            raise StoreError(
                f"There is no trajectory {trajectory_id!r} in {self._database.path}.",
                f"`hrm-agent history --store {self._database.path}` lists what there is.",
            )
        return found

    def trajectories(
        self, *, run_id: str | None = None, group_id: str | None = None, status: RunStatus | None = None
    ) -> Iterator[Trajectory]:
        """Trajectories with their calls, in the order in which they were begun."""
        wanted = {"run_id": run_id, "group_id": group_id, "status": status.value if status else None}
        given = {name: value for name, value in wanted.items() if value is not None}
        return self._trajectories(" AND ".join(f"{name} = ?" for name in given) or "1", tuple(given.values()))

    def _trajectories(self, where: str, values: tuple[str, ...]) -> Iterator[Trajectory]:
        with self._database.cursor(transaction=False) as cursor:
            rows = cursor.execute(f"SELECT record FROM trajectories WHERE {where} ORDER BY rowid", values).fetchall()
        for (record,) in rows:
            header = Trajectory.model_validate_json(record)
            calls = self._calls("c.thread_id = ?", (header.thread_id,))
            tool_calls = self._tool_calls("thread_id = ?", (header.thread_id,))
            yield header.model_copy(update={"calls": tuple(calls), "tool_calls": tuple(tool_calls)})

    # overlays

    def write_overlays(self, overlays: Sequence[Overlay]) -> None:
        """Write the judgement of one training step, as a whole."""
        with self._database.cursor() as cursor:
            cursor.executemany(
                "INSERT OR REPLACE INTO overlays VALUES (?, ?, ?, ?)",
                [(o.run_id, o.step, o.trajectory_id, o.model_dump_json()) for o in overlays],
            )

    def overlays(self, run_id: str) -> list[Overlay]:
        """All judgements of one training run, by step."""
        with self._database.cursor(transaction=False) as cursor:
            rows = cursor.execute(
                "SELECT record FROM overlays WHERE run_id = ? ORDER BY step, rowid", (run_id,)
            ).fetchall()
        return [Overlay.model_validate_json(record) for (record,) in rows]


def _read_call(record: str, token_ids: bytes, mask: bytes, logprobs: bytes) -> Call:
    call = Call.model_validate_json(record)
    tokens = {
        "token_ids": tuple(array("i", token_ids)),
        "mask": tuple(flag == 1 for flag in mask),
        "logprobs": tuple(array("f", logprobs)),
    }
    return call.model_copy(update=tokens)
