"""Fencing: a process writes to a thread only while it holds its leases on that thread.

A process may be stopped for longer than its lease lasts, and another one may take the thread over.
When the first process continues, it does not know this. So each transaction that writes to a thread
checks the leases that its process held when the work was handed in: an owner, and an epoch that
grows each time a lease changes hands. If a lease is missing, nothing is written, and the run gets
`LeaseLostError`. On PostgreSQL the rows stay locked until the commit, so no process takes over
between the check and the commit.

Work without a lease on a thread (a graph with the bare checkpointer, an import) is not checked.

The records of held threads are cached, to avoid database queries. The holder of the lease of a
thread's run is the only run that writes to the thread. So the rows that it has read once and the
rows that it has written since are complete: earlier calls of a tool, the checkpoints that led to
the current one. (Writers without a lease are not stopped: what a bare checkpointer writes or
deletes beside a run is not seen.) If a thread had no records when its lease was taken, the rows
written since are complete. Its calls are kept as they were written, and nothing is queried. Threads
without a lease are queried each time.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from hrm_agent.basics.bounded import BoundedMap, remember
from hrm_agent.errors import LeaseLostError
from hrm_agent.trajectory import Call, ToolCall

if TYPE_CHECKING:
    from hrm_agent.store.database.cursors import Cursor, WriteCursor

__all__ = [
    "Fence",
    "HeldLease",
    "HeldThread",
    "HeldThreads",
    "KnownToolCall",
    "ThreadWork",
    "WrittenCall",
    "leases_of",
    "lost_error",
    "read_leases",
    "readable",
]

T = TypeVar("T")
_log = logging.getLogger(__name__)


class HeldLease(NamedTuple):
    """Lease as this process took it."""

    key: str
    """Key of the lease's row."""
    epoch: int
    """Number of times the lease had changed hands when it was taken."""


_NONE = frozenset[HeldLease]()


class ThreadWork(Generic[T]):
    """Work on a thread, with the leases under which it was handed in."""

    def __init__(
        self,
        fence: Fence,
        thread_id: str,
        leases: frozenset[HeldLease],
        work: Callable[[WriteCursor], T],
    ):
        self._fence = fence
        self._work = work
        self.thread_id = thread_id
        self.leases = leases

    def __call__(self, cursor: WriteCursor) -> T:
        self._fence.refuse_lost(cursor, self)
        return self._work(cursor)


def leases_of(works: Iterable[Any]) -> frozenset[HeldLease]:
    """All leases that a transaction has to check."""
    needed = _NONE
    for work in works:
        if (leases := getattr(work, "leases", _NONE)) and leases is not needed:
            needed |= leases
    return needed


def read_leases(cursor: Cursor, owner: str, leases: Iterable[HeldLease]) -> set[HeldLease]:
    """Leases of `leases` that `owner` has in the current transaction."""
    wanted = list(leases)
    marks = ", ".join("?" * len(wanted))
    query = f"SELECT thread_id, epoch FROM leases WHERE owner = ? AND thread_id IN ({marks})"
    rows = cursor.execute(query, (owner, *(lease.key for lease in wanted))).fetchall()
    return {HeldLease(str(key), int(epoch)) for key, epoch in rows}.intersection(wanted)


class Fence:
    """Leases of one opened store. Thread-safe."""

    def __init__(self) -> None:
        self.owner = secrets.token_hex(8)
        """Id of this opened store in the rows of its leases."""
        self.valid: set[HeldLease] = set()
        """Leases that this process is known to have in the current transaction."""
        self._held: dict[str, dict[HeldLease, Callable[[BaseException], object]]] = {}
        self._runs: dict[str, HeldLease] = {}
        """Leases under which graphs run, by thread."""
        self._stopped: dict[HeldLease, BaseException] = {}
        """Errors that stopped writing, by lease."""
        self._lost: dict[str, dict[str, LeaseLostError]] = {}
        """Errors of lost leases, by thread and lease key. Nothing is written to the thread until it
        is taken again, and even then nothing while this process still holds one of these leases.
        """
        self._lock = threading.Lock()

    @property
    def held(self) -> dict[HeldLease, str]:
        """All held leases, with their threads."""
        with self._lock:
            return {lease: thread for thread, leases in self._held.items() for lease in leases}

    def lease_of_run(self, thread_id: str) -> HeldLease | None:
        """Lease under which this process runs a graph on a thread (None if there is none, or
        another process took it).
        """
        return None if thread_id in self._lost else self._runs.get(thread_id)

    def add(
        self, thread_id: str, lease: HeldLease, on_lost: Callable[[BaseException], object]
    ) -> None:
        """Hold a lease. `on_lost` is called, in any thread, when another process has the lease, or
        by `stop`.
        """
        with self._lock:
            self._held.setdefault(thread_id, {})[lease] = on_lost
            if lease.key == thread_id:
                self._runs[thread_id] = lease
            if lost := self._lost.pop(thread_id, None):
                others = {held.key for held in self._held[thread_id]} - {lease.key}
                if still := {key: error for key, error in lost.items() if key in others}:
                    self._lost[thread_id] = still

    def remove(self, thread_id: str, lease: HeldLease) -> None:
        with self._lock:
            held = self._held.get(thread_id, {})
            held.pop(lease, None)
            if self._runs.get(thread_id) == lease:
                del self._runs[thread_id]
            if not held:
                self._held.pop(thread_id, None)

    def work_on(
        self, thread_id: str, work: Callable[[WriteCursor], T]
    ) -> Callable[[WriteCursor], T]:
        """Work that is done only if the leases that are held now are still held when it is done."""
        if thread_id not in self._held and thread_id not in self._lost:
            return work
        with self._lock:
            return ThreadWork(self, thread_id, frozenset(self._held.get(thread_id, ())), work)

    def refuse_lost(self, cursor: Cursor, work: ThreadWork[Any]) -> None:
        """Raise `LeaseLostError` if another process has a lease under which the work was handed
        in.
        """
        for error in list(self._lost.get(work.thread_id, {}).values()):
            raise error
        for lease in work.leases:
            if (error := self._stopped.get(lease)) is not None:
                raise error
            if lease not in self.valid:
                raise lost_error(cursor, work.thread_id, lease)

    def stop(self, thread_id: str, lease: HeldLease, error: BaseException) -> None:
        """Report to the holder of a lease, or the log, that work handed in under it could not be
        written.

        No other work under this lease is written either, as no record may follow a missing step.
        """
        with self._lock:
            if lease in self._stopped:
                return
            remember(self._stopped, lease, error)
            told = self._held.get(thread_id, {}).get(lease)
        if told is not None:
            told(error)
        elif not isinstance(error, LeaseLostError):  # a lost lease was reported before
            _log.error("A step of thread %s was not written: %s", thread_id, error, exc_info=error)

    def stopping(self, thread_id: str, lease: HeldLease) -> Callable[[Exception | None], None]:
        """Callback for a write that goes with the next commit. If it fails, its run is stopped."""

        def done(error: Exception | None) -> None:
            if error is not None:
                self.stop(thread_id, lease, error)

        return done

    def has_stopped(self, leases: Iterable[HeldLease]) -> bool:
        """True if writing under one of `leases` has stopped, of which its run was notified."""
        return any(lease in self._stopped for lease in leases)

    def lose(self, error: LeaseLostError) -> None:
        """Note that another process has a lease, and notify its holder.

        Old work may fail when this process has taken the lease again. Then nothing is lost.
        """
        lost = HeldLease(error.key, error.epoch)
        with self._lock:
            held = self._held.get(error.thread_id, {})
            if lost.key in {lease.key for lease in held} and lost not in held:
                return
            known = self._lost.setdefault(error.thread_id, {})
            if lost.key in known:
                return
            known[lost.key] = error
            told = [held[lost]] if lost in held else []
        for on_lost in told:
            on_lost(error)


def lost_error(cursor: Cursor, thread_id: str, lease: HeldLease) -> LeaseLostError:
    """Error for a lost lease, which names its new owner."""
    row = cursor.execute(
        "SELECT process, expires_at FROM leases WHERE thread_id = ?", (lease.key,)
    ).fetchone()
    lost = partial(LeaseLostError, thread_id=thread_id, key=lease.key, epoch=lease.epoch)
    if row is None:
        return lost(
            f"Thread {thread_id!r} was deleted while this process was at work on it. "
            "What this process did after that is not recorded.",
            "Begin it anew, under another name.",
        )
    has = "has it now" if float(row[1]) > 0 else "has finished with it since"
    return lost(
        f"Thread {thread_id!r} was taken over by another process, because this one did not renew"
        " its lease in time (it was stopped, or could not reach the store). Process"
        f" {readable(str(row[0]))} {has}. What this process did after that is not recorded.",
        f"The record is the other run's: `hrm-agent history {thread_id}`. To go another way from"
        " there: `hrm-agent fork --help`.",
    )


def readable(process: str) -> str:
    """Process of a lease, for display."""
    host, number, *_ = [*process.split("/"), ""]
    return f"{number} on {host}"


_TOOL_CALLS = 16
"""Number of newest tool calls of a thread that are kept whole, as a tool's output may be large."""
_CALLS, _TOKENS = 64, 65_536
"""Maximum number of calls, and of tokens, of a new thread whose calls are kept."""
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
        self.lease = lease
        self.generation = generation
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
        """Note a model call as it is written, inside the transaction. `written`: its row (None if
        the call could not be read back from the row).
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
                self._tools = found | self._tools
                self._loaded = True
            self._enter()
            return self._tools

    def has_tool_call(self, record_id: str) -> bool:
        """True if a tool call is known to be on record."""
        with self._lock:
            self._enter()
            return record_id in self._tools

    def record(self, record_id: str) -> tuple[ToolCall, bytes] | None:
        """Tool call that was written since the lease was taken, and its row (None for a call that
        is missing or older).
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
