"""Tool calls in the journal, which are found by id, by the hash of their name and arguments, and by
their idempotency key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from hrm_agent.store.database.cursors import Cursor, answered
from hrm_agent.store.database.fencing import HeldThread, KnownToolCall
from hrm_agent.store.journal.headers import TrajectoryHeaders
from hrm_agent.store.journal.records import TOOL_CALLS, in_batches
from hrm_agent.store.values.value_reader import hash_of
from hrm_agent.trajectory import ToolCall, ToolStatus, content_hash

__all__ = ["ToolCalls"]

_FOUND_BY = ("id", "checkpoint_id", "arguments_hash", "key_hash")
"""Columns of a `KnownToolCall`."""
_INSERT = (
    f"INSERT INTO tool_calls ({', '.join(_FOUND_BY)}, thread_id, record) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (id)"
)


class ToolCalls(TrajectoryHeaders):
    """Tool calls of a store."""

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
        rows = self._rows(query, (thread_id, hash_))
        return str(rows[0][0]) if rows else None

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
                # The row is written with the next commit. Until then this thread finds the call in
                # `held`, and whoever reads the table commits the deferred rows first.
                held.add_tool_call(found_by, tool_call, sealed)
                return tool_call
        return self._database.add(
            lambda cursor: self.insert_tool_call(cursor, tool_call, again=again), thread
        )

    def _as_found(self, tool_call: ToolCall) -> KnownToolCall:
        key = tool_call.idempotency_key
        return KnownToolCall(
            tool_call.id,
            tool_call.identity.step,
            self._hash(tool_call.name, tool_call.arguments),
            None if key is None else self._hash("key", key),
        )

    def insert_tool_call(
        self, cursor: Cursor, tool_call: ToolCall, *, again: bool = False
    ) -> ToolCall:
        """Write a tool call as part of another transaction."""
        found_by = self._as_found(tool_call)
        sealed = TOOL_CALLS.sealed(self._cipher, tool_call, tool_call.id)
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
        query = "SELECT id, checkpoint_id FROM tool_calls WHERE thread_id = ? ORDER BY seq"
        return [(str(id_), str(step)) for id_, step in self._rows(query, (thread_id,))]

    def tool_calls(self) -> list[ToolCall]:
        """All tool calls of the store, in the order in which they started."""
        return self._tool_call_rows.read("1 = 1", ())

    def tool_calls_among(
        self, ids: Sequence[str], *, steps_of: str | None = None
    ) -> Iterator[ToolCall]:
        """Tool calls by their ids, or by the ids of their steps on the thread `steps_of`."""
        for where, values in in_batches(ids, steps_of):
            yield from self._tool_call_rows.read(where, values)

    def _hash(self, *parts: Any) -> str:
        """Hash for lookups by content. It is keyed in an encrypted store, so it reveals nothing."""
        plain = content_hash(*parts)
        return (
            hash_of(0, plain.encode(), self._cipher.hash_key).hex()
            if self._cipher.hash_key
            else plain
        )

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
