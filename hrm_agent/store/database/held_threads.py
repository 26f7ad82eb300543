"""What this process knows to be on record of the threads that it holds, without asking the database
again.

Who holds the lease of a thread's run is the only run that writes to it
(`hrm_agent.store.database.fencing`), so what was read once and what was written since is all there
is: whether a tool was called like this before, which checkpoints led here. (Who holds no lease is
not asked for one: what a bare checkpointer writes, or deletes, beside a run is not seen by it.) Of
a thread on which nothing was on record when its lease was taken, what was written since is all
there is: its calls are kept as they were written, and nothing is asked at all. A thread that nobody
holds is asked about each time.
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
"""Newest ones of a thread that are kept whole: what a tool gave out may be large."""
_CALLS, _TOKENS = 64, 65_536
"""Up to so many calls and tokens the calls of a new thread are kept."""
_FEWEST = 64
"""Threads that are kept before those that are held no more are looked for."""

Dumps = tuple[dict[str, Any], ...]


class KnownToolCall(NamedTuple):
    """What a tool call is found by."""

    id: str
    """Its record's."""
    step: str
    """The outermost checkpoint that its step started from."""
    arguments_hash: str
    """Of its name and arguments."""
    key_hash: str | None
    """Of its idempotency key."""


class WrittenCall(NamedTuple):
    """A model call as it was written."""

    row: tuple[bytes, bytes | None, bytes, bytes]
    """As sealed: record, token ids, mask, log-probs."""
    request: Dumps | None
    """The messages that were sent, as JSON dumps; None where they are not known."""
    tools: Dumps | None
    """The tools that were offered."""


class HeldThread:
    """What is on record of one thread, as long as its lease is held. Thread-safe."""

    def __init__(
        self, lease: HeldLease, generation: int, *, new: bool = False, joins: bool = False
    ) -> None:
        self.lease, self.generation = lease, generation
        self.new = new
        """Nothing was on record of it when its lease was taken."""
        self.joins = joins
        """What can be done again without anybody noticing goes with the next commit: checkpoints,
        calls of a tool whose effects end with its sandbox.
        """
        self.header: bytes | None = None
        """The fields of its trajectory as they were written, where it is new; without its calls."""
        self.parents: dict[tuple[str, str], str | None] = {}
        """Namespace and id of checkpoints -> the checkpoint before."""
        self.namespaces: set[str] = set()
        """Those in which checkpoints or writes were handed in."""
        self._calls: dict[str, WrittenCall] | None = {} if new else None
        """Of a new thread all, in the order of their transactions; None where they are too many."""
        self._tokens = 0
        self._written = deque[tuple[KnownToolCall, ToolCall, bytes]]()
        """In the order of their transactions. What the database is asked for may hold a part of
        them already.
        """
        self._tools: dict[str, KnownToolCall] = {}
        self._records = BoundedMap[str, tuple[ToolCall, bytes]](_TOOL_CALLS)
        self._loaded = new
        self._inherited: Sequence[tuple[str, str]] | None = () if new else None
        self._lock = threading.Lock()

    # model calls

    @property
    def has_no_calls(self) -> bool:
        """No model call is on record."""
        return self._calls is not None and not self._calls

    def add_call(self, call: Call, written: WrittenCall | None) -> None:
        """Note a model call as it is written, inside the transaction. None: it could not be read
        back from this.
        """
        with self._lock:
            if self._calls is None:
                return
            self._calls.pop(call.id, None)  # a transaction that was done again
            self._tokens += len(call.token_ids)
            if written is None or len(self._calls) >= _CALLS or self._tokens > _TOKENS:
                self._calls = None
            else:
                self._calls[call.id] = written

    def everything(self) -> tuple[bytes, dict[str, WrittenCall], list[tuple[str, bytes]]] | None:
        """All that was written of a new thread: the header of its trajectory, model calls, tool
        calls as sealed, each in order; None where it is not all here.
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
        """Note a tool call as it is written, inside the transaction or as it is handed in for the
        next one.
        """
        self._written.append((known, record, sealed))

    def tool_calls(self, load: Callable[[], Sequence[KnownToolCall]]) -> dict[str, KnownToolCall]:
        """By id, in the order in which they were first written. `load` reads those on record, the
        first time.
        """
        # waits for a commit, which waits here
        found = None if self._loaded else {known.id: known for known in load()}
        with self._lock:
            if found is not None and not self._loaded:
                self._tools, self._loaded = found | self._tools, True
            self._enter()
            return self._tools

    def has_tool_call(self, record_id: str) -> bool:
        """Whether a tool call is known to be on record."""
        with self._lock:
            self._enter()
            return record_id in self._tools

    def record(self, record_id: str) -> tuple[ToolCall, bytes] | None:
        """A tool call that was written in this time, and its row; None for another, or one of long
        ago.
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
        """Ids and steps of the tool calls of the lineage that a fork left,
        which does not change.
        """
        if self._inherited is None:
            self._inherited = load()
        return self._inherited


class HeldThreads:
    """All that are held."""

    def __init__(self, fence: Fence) -> None:
        self._fence = fence
        self._threads: dict[str, HeldThread] = {}
        self._most = _FEWEST
        self._generation = 0
        self._lock = threading.Lock()

    def of(self, thread_id: str) -> HeldThread | None:
        """What is known of a thread; None where its run is not ours."""
        lease = self._fence.lease_of_run(thread_id)
        if lease is None:
            return None
        found = self._threads.get(thread_id)
        return found if self._is_of(found, lease) else self._begin(thread_id, lease)

    def begin(self, thread_id: str, generation: int, *, new: bool, joins: bool) -> None:
        """Start tracking a thread whose lease was just acquired. `generation`: as read before
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
        """Changes whenever something may have been deleted, or was not written after all."""
        return self._generation

    def add_checkpoint(
        self, thread_id: str, namespace: str, checkpoint_id: str, parent_id: str | None
    ) -> None:
        """Note a checkpoint as it is written."""
        if (held := self.of(thread_id)) is not None:
            held.parents[namespace, checkpoint_id] = parent_id

    def forget(self) -> None:
        """Something may have been deleted, or was not written after all."""
        with self._lock:
            self._generation += 1
