"""Cache of records of the threads that this process holds, to avoid database queries.

The holder of the lease of a thread's run is the only run that writes to it
(`hrm_agent.store.database.fencing`). So the rows that were read once and those written since are
complete: earlier calls of a tool, the checkpoints that led here. (Writers without a lease are not
stopped: writes or deletes of a bare checkpointer beside a run are not seen here.) If a thread had
no records when its lease was taken, the rows written since are complete. Its calls are kept as they
were written, and nothing is queried. Threads without a lease are queried each time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hrm_agent.basics.bounded import BoundedMap
from hrm_agent.store.database.fencing import Fence, HeldLease
from hrm_agent.trajectory import Call, ToolCall

__all__ = ["HeldThread", "HeldThreads", "KnownToolCall", "WrittenCall"]

_TOOL_CALLS = 16
"""Number of newest tool calls of a thread that are kept whole, as a tool's output may be large."""
_CALLS, _TOKENS = 64, 65_536
"""Most calls and tokens of a new thread whose calls are kept."""
_FEWEST = 64
"""Number of threads above which released ones are removed."""

Dumps = tuple[dict[str, Any], ...]


class KnownToolCall(NamedTuple):
    """Keys for finding a tool call."""

    id: str
    """Id of its record."""
    step: str
    """Outermost checkpoint that its step started from."""
    arguments_hash: str
    """Hash of its name and arguments."""
    key_hash: str | None
    """Hash of its idempotency key (None if it has none)."""


class WrittenCall(NamedTuple):
    """Model call as it was written."""

    row: tuple[bytes, bytes | None, bytes, bytes]
    """Encrypted columns: record, token ids, mask, log-probs."""
    request: Dumps | None
    """Messages that were sent, as JSON dumps (None if they are not known)."""
    tools: Dumps | None
    """Tools that were offered, as JSON dumps."""


class HeldThread:
    """Records of one thread while its lease is held. Thread-safe."""

    def __init__(
        self, lease: HeldLease, generation: int, *, new: bool = False, joins: bool = False
    ) -> None:
        self.lease, self.generation = lease, generation
        self.new = new
        """True if the thread had no records when its lease was taken."""
        self.joins = joins
        """True if repeatable writes go with the next commit: checkpoints, and calls of a tool whose
        effects end with its sandbox.
        """
        self.header: bytes | None = None
        """Fields of its trajectory as they were written, without calls, if the thread is new."""
        self.parents: dict[tuple[str, str], str | None] = {}
        """Id of the previous checkpoint, by namespace and id."""
        self.namespaces: set[str] = set()
        """Namespaces in which checkpoints or writes were handed in."""
        self._calls: dict[str, WrittenCall] | None = {} if new else None
        """All calls of a new thread, in the order of their transactions (None if they are too
        many).
        """
        self._tokens = 0
        self._written = deque[tuple[KnownToolCall, ToolCall, bytes]]()
        """Written tool calls, in the order of their transactions. Rows read from the database may
        include some of them.
        """
        self._tools: dict[str, KnownToolCall] = {}
        self._records = BoundedMap[str, tuple[ToolCall, bytes]](_TOOL_CALLS)
        self._loaded = new
        self._inherited: Sequence[tuple[str, str]] | None = () if new else None
        self._lock = threading.Lock()

    # model calls

    @property
    def has_no_calls(self) -> bool:
        """True if no model call is on record."""
        return self._calls is not None and not self._calls

    def add_call(self, call: Call, written: WrittenCall | None) -> None:
        """Note a model call as it is written, inside the transaction. `written` is None if it could
        not be read back from this.
        """
        with self._lock:
            if self._calls is None:
                return
            self._calls.pop(call.id, None)  # the transaction was repeated
            self._tokens += len(call.token_ids)
            if written is None or len(self._calls) >= _CALLS or self._tokens > _TOKENS:
                self._calls = None
            else:
                self._calls[call.id] = written

    def everything(self) -> tuple[bytes, dict[str, WrittenCall], list[tuple[str, bytes]]] | None:
        """Records of a new thread: the header of its trajectory, model calls, and encrypted tool
        calls, each in order (None if it is not complete).
        """
        with self._lock:
            self._enter()
            if self.header is None or self._calls is None or len(self._records) < len(self._tools):
                return None
            return (
                self.header,
                dict(self._calls),
                [(id_, self._records[id_][1]) for id_ in self._tools],
            )

    # tool calls

    def add_tool_call(self, known: KnownToolCall, record: ToolCall, sealed: bytes) -> None:
        """Note a tool call as it is written, inside the transaction or when it is handed in for the
        next one.
        """
        self._written.append((known, record, sealed))

    def tool_calls(self, load: Callable[[], Sequence[KnownToolCall]]) -> dict[str, KnownToolCall]:
        """Tool calls by id, in the order in which they were first written. `load` reads the
        existing ones the first time.
        """
        # `load` waits for a commit, which needs the lock below
        found = None if self._loaded else {known.id: known for known in load()}
        with self._lock:
            if found is not None and not self._loaded:
                self._tools, self._loaded = found | self._tools, True
            self._enter()
            return self._tools

    def has_tool_call(self, record_id: str) -> bool:
        """True if a tool call is known to be on record."""
        with self._lock:
            self._enter()
            return record_id in self._tools

    def record(self, record_id: str) -> tuple[ToolCall, bytes] | None:
        """Tool call that was written since the lease was taken, and its row (None for another, or
        an old one).
        """
        with self._lock:
            self._enter()
            return self._records.get(record_id)

    def _enter(self) -> None:
        while self._written:
            known, record, sealed = self._written.popleft()
            self._tools.setdefault(known.id, known)
            self._records.pop(known.id, None)
            self._records[known.id] = (record, sealed)

    def inherited(self, load: Callable[[], Sequence[tuple[str, str]]]) -> Sequence[tuple[str, str]]:
        """Ids and steps of the tool calls in a fork's lineage, which do not change."""
        if self._inherited is None:
            self._inherited = load()
        return self._inherited


class HeldThreads:
    """All threads that this process holds."""

    def __init__(self, fence: Fence) -> None:
        self._fence = fence
        self._threads: dict[str, HeldThread] = {}
        self._most = _FEWEST
        self._generation = 0
        self._lock = threading.Lock()

    def of(self, thread_id: str) -> HeldThread | None:
        """Records of a thread (None if this process does not hold its run)."""
        lease = self._fence.lease_of_run(thread_id)
        if lease is None:
            return None
        found = self._threads.get(thread_id)
        return found if self._is_of(found, lease) else self._begin(thread_id, lease)

    def begin(self, thread_id: str, generation: int, *, new: bool, joins: bool) -> None:
        """Start tracking a thread whose lease was just acquired. `generation` was read before
        acquiring it.
        """
        if (lease := self._fence.lease_of_run(thread_id)) is not None:
            self._begin(thread_id, lease, new=new and generation == self._generation, joins=joins)

    def _is_of(self, found: HeldThread | None, lease: HeldLease) -> bool:
        return found is not None and found.lease == lease and found.generation == self._generation

    def _begin(
        self, thread_id: str, lease: HeldLease, *, new: bool = False, joins: bool = False
    ) -> HeldThread:
        with self._lock:
            found = self._threads.get(thread_id)
            if found is None or not self._is_of(found, lease):
                if len(self._threads) >= self._most:
                    held = {
                        name: each
                        for name, each in self._threads.items()
                        if self._fence.lease_of_run(name)
                    }
                    self._threads, self._most = held, max(2 * len(held), _FEWEST)
                joins = joins or (found is not None and found.lease == lease and found.joins)
                found = self._threads[thread_id] = HeldThread(
                    lease, self._generation, new=new, joins=joins
                )
            return found

    @property
    def generation(self) -> int:
        """Counter that changes whenever rows may have been deleted, or were not written after
        all.
        """
        return self._generation

    def add_checkpoint(
        self, thread_id: str, namespace: str, checkpoint_id: str, parent_id: str | None
    ) -> None:
        """Note a checkpoint as it is written."""
        if (held := self.of(thread_id)) is not None:
            held.parents[namespace, checkpoint_id] = parent_id

    def forget(self) -> None:
        """Forget all records, as rows may have been deleted, or were not written after all."""
        with self._lock:
            self._generation += 1
