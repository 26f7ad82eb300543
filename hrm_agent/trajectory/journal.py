"""Journal of calls, which are written before their node returns: the protocol, and an
implementation in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hrm_agent.basics.bounded import BoundedMap
from hrm_agent.trajectory.draws import TaskDraws
from hrm_agent.trajectory.message_dump import message_dump
from hrm_agent.trajectory.schema import Call, ToolCall, ToolStatus

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

__all__ = ["CheckpointLineage", "Journal", "MemoryJournal"]


@dataclass(frozen=True, slots=True)
class CheckpointLineage:
    """Checkpoint and its ancestors, as far back as they are known."""

    order: Mapping[str, int]
    """Id of a checkpoint -> its number, from the oldest one known."""
    oldest_known: str | None
    """Newest ancestor whose own parents are not stored. Every id up to this one counts as an
    ancestor (None: all ancestors are stored).
    """

    def place(self, checkpoint_id: str) -> tuple[int, str] | None:
        """Sort key of a checkpoint of the lineage (None for one outside it). LangGraph's ids sort
        by time.
        """
        if checkpoint_id in self.order:
            return self.order[checkpoint_id], checkpoint_id
        before = self.oldest_known is not None and checkpoint_id <= self.oldest_known
        return (-1, checkpoint_id) if before else None


class Journal(Protocol):
    """Storage of calls, which are written before their node returns. Thread-safe. Each write is
    durable when it returns.
    """

    @property
    def is_blocking(self) -> bool:
        """True if a write waits for a disk or a server, which is too long for an event loop."""
        ...

    @property
    def serializer(self) -> JsonPlusSerializer | None:
        """Serializer of tool results (None: only LangGraph's own types can be stored)."""
        ...

    def calls_of_task(self, thread_id: str, task_id: str) -> Sequence[Call]:
        """Finished model calls of one LangGraph task, by call index."""
        ...

    def tasks_of_thread(self, thread_id: str) -> set[str]:
        """Ids of the LangGraph tasks of a thread that have finished model calls."""
        ...

    def seeds_of_thread(self, thread_id: str) -> set[int]:
        """Seeds of all finished model calls of a thread."""
        ...

    def find_call(self, call_id: str, *, request: bool = True) -> Call | None:
        """Finished model call by id (None if missing); without its messages and tools if `request`
        is False, which is faster.
        """
        ...

    def path_tokens(self, call_id: str) -> tuple[int, ...]:
        """Tokens along the path from the root to `call_id`, its answer included. Raises `KeyError`
        if a part is missing.
        """
        ...

    def write_call(self, call: Call, sent: Sequence[Any] = ()) -> Call:
        """Write a finished call. Return the call on record: if its id was recorded before, the
        earlier call, which is kept.

        `sent`: messages sent, which are read back as `Call.request`. The returned call has no
        request yet.
        """
        ...

    def find_tool_call(self, record_id: str, thread_id: str = "") -> ToolCall | None:
        """Tool call by record id (None if missing). `thread_id`: thread of the call, with which
        some journals find it without a search.
        """
        ...

    def find_repeat(self, thread_id: str, name: str, arguments: dict[str, Any] | str) -> str | None:
        """Id of the first tool call of the thread with this name and these arguments (None if
        missing).
        """
        ...

    def find_by_key(self, thread_id: str, key: str) -> ToolCall | None:
        """Tool call of the thread with this idempotency key (None if missing). A call that
        succeeded is preferred.
        """
        ...

    def write_tool_call(
        self, tool_call: ToolCall, *, again: bool = False, repeatable: bool = False
    ) -> ToolCall:
        """Write a tool call that has started, or has finished. A finished record is not replaced.
        Return the record that counts.

        `again`: replace a finished record, since the call runs again: its stored result cannot be
        given back. `repeatable`: the call's effects end with its sandbox. If the run writes several
        steps at once, the record may be written together with them.
        """
        ...

    def draws_of_thread(self, thread_id: str) -> Sequence[TaskDraws]:
        """Draws of the tasks of a thread, in no order."""
        ...

    def write_draws(
        self, thread_id: str, key: tuple[str, int], record: Callable[[], TaskDraws]
    ) -> None:
        """Write the draws of a task, replacing those under its key (task and attempt).

        The write is deferred. The draws are durable as soon as anything that is written later is
        durable. `record` is called when they are written.
        """
        ...

    def line(self, thread_id: str, namespace: str, checkpoint_id: str) -> CheckpointLineage:
        """Lineage of a checkpoint of one graph of a thread."""
        ...

    def steps_of_tool_calls(self, thread_id: str) -> Sequence[tuple[str, str]]:
        """Tool calls of a thread as (id, checkpoint of the outermost graph that the step started
        from).

        They are in the order in which they were first written. Calls that a fork inherited come
        first.
        """
        ...


class MemoryJournal:
    """Journal in memory, without a store, for the newest `capacity` calls."""

    is_blocking = False
    """False: no write waits for a disk."""

    def __init__(self, capacity: int = 4096, serializer: JsonPlusSerializer | None = None) -> None:
        self.serializer = serializer
        self._calls = BoundedMap[str, Call](capacity)
        self._sent = BoundedMap[str, tuple[Any, ...]](capacity)
        self._tool_calls = BoundedMap[str, ToolCall](capacity)
        self._draws = BoundedMap[tuple[str, str, int], Callable[[], TaskDraws]](capacity)
        self._lock = threading.Lock()

    def calls_of_task(self, thread_id: str, task_id: str) -> Sequence[Call]:
        with self._lock:
            calls = [
                c
                for c in self._calls.values()
                if (c.identity.thread_id, c.identity.task_id) == (thread_id, task_id)
            ]
        return sorted(map(self._with_request, calls), key=lambda call: call.call_index)

    def tasks_of_thread(self, thread_id: str) -> set[str]:
        with self._lock:
            return {
                c.identity.task_id
                for c in self._calls.values()
                if c.identity.thread_id == thread_id
            }

    def seeds_of_thread(self, thread_id: str) -> set[int]:
        with self._lock:
            calls = [call for call in self._calls.values() if call.identity.thread_id == thread_id]
        return {call.seed for call in calls if call.seed is not None}

    def find_call(self, call_id: str, *, request: bool = True) -> Call | None:
        found = self._calls.get(call_id)
        return found if found is None or not request else self._with_request(found)

    def _with_request(self, call: Call) -> Call:
        """Call with its request. Messages are kept as objects, which the calls of a conversation
        share.
        """
        sent = self._sent.get(call.id)
        dumps = None if sent is None else tuple(message_dump(message) for message in sent)
        return call if dumps is None else call.model_copy(update={"request": dumps})

    def path_tokens(self, call_id: str) -> tuple[int, ...]:
        deltas: list[tuple[int, ...]] = []
        step: str | None = call_id
        while step is not None:
            call = self._calls[step]
            deltas.append(call.token_ids)
            step = call.parent
        return tuple(token for delta in reversed(deltas) for token in delta)

    def write_call(self, call: Call, sent: Sequence[Any] = ()) -> Call:
        with self._lock:
            if sent and call.id not in self._calls:
                self._sent[call.id] = tuple(sent)
            return self._calls.setdefault(call.id, call)

    def find_tool_call(self, record_id: str, thread_id: str = "") -> ToolCall | None:
        return self._tool_calls.get(record_id)

    def find_repeat(self, thread_id: str, name: str, arguments: dict[str, Any] | str) -> str | None:
        with self._lock:
            for tool_call in self._tool_calls.values():
                if tool_call.identity.thread_id == thread_id and (
                    tool_call.name,
                    tool_call.arguments,
                ) == (
                    name,
                    arguments,
                ):
                    return tool_call.id
        return None

    def find_by_key(self, thread_id: str, key: str) -> ToolCall | None:
        with self._lock:
            under_key = (c for c in self._tool_calls.values() if c.idempotency_key == key)
            return next(
                (
                    c
                    for c in under_key
                    if c.identity.thread_id == thread_id and c.status is ToolStatus.OK
                ),
                None,
            )

    def write_tool_call(
        self, tool_call: ToolCall, *, again: bool = False, repeatable: bool = False
    ) -> ToolCall:
        with self._lock:
            standing = self._tool_calls.get(tool_call.id)
            if standing is not None and standing.status is not None and not again:
                return standing
            self._tool_calls[tool_call.id] = tool_call
            return tool_call

    def draws_of_thread(self, thread_id: str) -> Sequence[TaskDraws]:
        with self._lock:
            found = [
                record for (thread, _, _), record in self._draws.items() if thread == thread_id
            ]
        return [record() for record in found]

    def write_draws(
        self, thread_id: str, key: tuple[str, int], record: Callable[[], TaskDraws]
    ) -> None:
        with self._lock:
            self._draws[thread_id, *key] = record

    def line(self, thread_id: str, namespace: str, checkpoint_id: str) -> CheckpointLineage:
        return CheckpointLineage({}, checkpoint_id)

    def steps_of_tool_calls(self, thread_id: str) -> Sequence[tuple[str, str]]:
        with self._lock:
            calls = [
                call for call in self._tool_calls.values() if call.identity.thread_id == thread_id
            ]
        return [(call.id, call.identity.step) for call in calls]
