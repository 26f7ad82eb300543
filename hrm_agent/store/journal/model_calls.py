"""Model calls in the journal.

Tokens have a table of their own, as little-endian int32 and float32 bytes. The graph state carries
only the call's id (inside the message), which keeps checkpoints small.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hrm_agent.store.database.cursors import Cursor, answered
from hrm_agent.store.database.fencing import WrittenCall
from hrm_agent.store.journal.records import CALLS, JournalTables, in_batches
from hrm_agent.store.values.damage import reading
from hrm_agent.store.values.packed_records import plain_mask, plain_numbers
from hrm_agent.store.values.plain_reader import NeedsItsType, PlainLoader, request_part
from hrm_agent.store.values.sent_requests import Sent, read_requests
from hrm_agent.store.values.value_reader import read_values
from hrm_agent.trajectory import Call

if TYPE_CHECKING:
    from hrm_agent.store.values.requests import SentRow

__all__ = ["ModelCalls"]

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


class ModelCalls(JournalTables):
    """Model calls of a store."""

    def calls_of_task(self, thread_id: str, task_id: str) -> Sequence[Call]:
        calls = self._calls("c.thread_id = ? AND c.task_id = ?", (thread_id, task_id))
        return sorted(calls, key=lambda call: call.call_index)

    def tasks_of_thread(self, thread_id: str) -> set[str]:
        if self._has_no_calls(thread_id):
            return set()
        query = "SELECT DISTINCT task_id FROM calls WHERE thread_id = ?"
        return {str(task) for (task,) in self._rows(query, (thread_id,))}

    def _has_no_calls(self, thread_id: str) -> bool:
        held = self._database.held.of(thread_id)
        return held is not None and held.has_no_calls

    def seeds_of_thread(self, thread_id: str) -> set[int]:
        if self._has_no_calls(thread_id):
            return set()
        query = "SELECT seed FROM calls WHERE thread_id = ? AND seed IS NOT NULL"
        return {int(seed) for (seed,) in self._rows(query, (thread_id,))}

    def find_call(self, call_id: str, *, request: bool = True) -> Call | None:
        return next(iter(self._calls("c.id = ?", (call_id,), requests=request)), None)

    def calls_among(self, ids: Sequence[str], *, steps_of: str | None = None) -> Iterator[Call]:
        """Model calls by their ids, or by the ids of their steps on the thread `steps_of`, without
        requests.
        """
        for where, values in in_batches(ids, steps_of, "c."):
            yield from self._calls(where, values, requests=False)

    def has_call(self, call_id: str) -> bool:
        """True if a model call is on record, readable or not."""
        return bool(self._rows("SELECT 1 FROM calls WHERE id = ?", (call_id,)))

    def path_tokens(self, call_id: str) -> tuple[int, ...]:
        deltas = self._rows(_PATH_QUERY, (call_id,))
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
        identity = call.identity
        messages = sent or call.request
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
