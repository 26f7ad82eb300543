"""Fencing: a process writes to a thread only while it holds its leases on that thread.

A process may be stopped for longer than its lease lasts, and another one may take the thread over.
When the first continues, it does not know. So each transaction that writes to a thread checks the
leases that its process held when the work was handed in: an owner, and an epoch that grows each
time a lease changes hands. If one is missing, nothing is written, and the run gets
`LeaseLostError`. On PostgreSQL the rows stay locked until the commit, so no process takes over
between the check and the commit.

Work without a lease on a thread (a graph with the bare checkpointer, an import) is not checked.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from hrm_agent.basics.bounded import remember
from hrm_agent.errors import LeaseLostError

if TYPE_CHECKING:
    from hrm_agent.store.database.cursors import Cursor, WriteCursor

__all__ = ["Fence", "HeldLease", "ThreadWork", "leases_of", "lost_error", "read_leases", "readable"]

T = TypeVar("T")
_log = logging.getLogger(__name__)


class HeldLease(NamedTuple):
    """Lease as this process took it."""

    key: str
    """Key of its row."""
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
        self._fence, self._work = fence, work
        self.thread_id, self.leases = thread_id, leases

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
        is taken again, and then not while one of these leases is still held.
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
        """Work that is done only if the leases held now are still held then."""
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
