"""Leases: one run at a time on a thread, kept alive by a heartbeat.

A run that dies leaves its lease behind. Another process on the same machine sees that the owner is
gone and takes over at once. If it cannot see that (another machine, another container), it has to
wait until the lease expires.

Expiry does not depend on a machine's wall clock. On PostgreSQL the server's clock writes and
compares the times. A SQLite file is written on one machine at a time, whose processes share the
kernel's monotonic clock. Beside the time, a row has the difference between the owner's wall clock
and the monotonic clock, and the boot id of the kernel. An owner of another boot is gone. A row
without these two was written by an earlier version (or a system without `/proc`) and is judged by
the wall clock. No lease lasts longer than `LEASE_SECONDS` from now. A longer one, from a clock that
was ahead, is shortened when another process asks for it. A live owner extends it again.

Each take-over raises the lease's epoch, which every write of the owner checks
(`hrm_agent.store.database.fencing`). A released lease keeps its row, with the time 0, so that a
loser can be shown who had it since. The row is deleted with its thread. Then, too, an owner that
was away is refused: the row of its lease is missing, and no epoch occurs twice.

Leases of threads that are to run next are taken together (`ComingThreads`).
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from hrm_agent.basics.guarded_loop import LoopGuard
from hrm_agent.errors import LeaseLostError, RunError, StoreError
from hrm_agent.store.database.cursors import Cursor, WriteCursor, placeholders
from hrm_agent.store.database.database import Database
from hrm_agent.store.database.fencing import HeldLease, lost_error, readable

__all__ = [
    "CHAT",
    "COMMAND",
    "HEARTBEAT_SECONDS",
    "LEASE_SECONDS",
    "RUN",
    "AcquiredLease",
    "ComingThreads",
    "Lease",
    "Leases",
    "forget_leases",
    "forget_unused_leases",
    "leased",
]

_TOGETHER = 64
"""Number of leases that are taken in one transaction."""


class AcquiredLease(NamedTuple):
    """Lease that was taken, and may not be used yet."""

    epoch: int
    """Number of times the lease had changed hands."""
    new: bool
    """True if the thread had no records."""
    generation: int
    """`HeldThreads.generation` before it was acquired."""
    at: float
    """Time on the monotonic clock, before it was acquired."""


class ComingThreads:
    """Threads that are to run, in their order. Not thread-safe."""

    def __init__(self, thread_ids: Sequence[str]) -> None:
        self._waiting = dict.fromkeys(thread_ids)
        self.asked_for: set[str] = set()
        """Threads whose leases were asked for, and are not used yet."""

    def __contains__(self, thread_id: str) -> bool:
        return thread_id in self._waiting or thread_id in self.asked_for

    def ask_for(self, thread_id: str) -> list[str]:
        """Next threads, whose leases are to be taken with that of `thread_id`."""
        self._waiting.pop(thread_id, None)
        found = list(islice(self._waiting, _TOGETHER - 1))
        for name in found:
            del self._waiting[name]
        self.asked_for.update(found)
        return found


LEASE_SECONDS = 30.0
"""Lifetime of a lease in seconds without a heartbeat."""
HEARTBEAT_SECONDS = 5.0
RUN = "run"
"""Purpose of a lease: a graph runs on the thread."""
CHAT = "talked on"
"""Purpose of a lease: a conversation is open on the thread."""
COMMAND = "worked on"
"""Purpose of a lease: a command keeps the thread's options, then runs it."""


_WITH_THREADS = ("trajectories", "checkpoints", "writes", "calls", "tool_calls")
_TABLES = len(_WITH_THREADS)
_ON_RECORD = (
    " UNION ALL ".join(f"SELECT 1 FROM {table} WHERE thread_id = ?" for table in _WITH_THREADS)
    + " LIMIT 1"
)


class Lease:
    """Lease that is held."""

    def __init__(self) -> None:
        self.new = False
        """True if the thread had no records when the lease was taken."""
        self.error: BaseException | None = None
        """Error that ended the lease, or stopped its writes (None if there is none)."""
        self._on_lost: Callable[[], object] = lambda: None

    def lose(self, error: BaseException) -> None:
        self.error = error
        self._on_lost()

    def _refuse_unwritten(self) -> None:
        if self.error is not None and not isinstance(self.error, LeaseLostError):
            raise self.error

    @asynccontextmanager
    async def stops_when_lost(self) -> AsyncGenerator[None]:
        """Cancel the work inside the block when the lease is lost, and raise `LeaseLostError`
        instead.

        If a deferred write could not be written, its error is raised.
        """
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        assert task is not None
        cancelling = task.cancelling()
        stopped = False

        def stop() -> None:
            nonlocal stopped
            if not (stopped or over):
                stopped = True
                task.cancel()

        def stop_from_any_thread() -> None:
            with suppress(RuntimeError):  # the loop was just closed
                loop.call_soon_threadsafe(stop)

        over = False
        self._on_lost = stop_from_any_thread
        try:
            if self.error is not None:
                raise self.error
            yield
            self._refuse_unwritten()
        except asyncio.CancelledError:
            if stopped and task.cancelling() - 1 <= cancelling and self.error is not None:
                raise self.error from None
            raise
        finally:
            over = True
            self._on_lost = lambda: None
            if stopped:
                task.uncancel()


class Leases:
    """Leases that this process holds on threads of one store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._fence = database.fence
        self._held: set[str] = set()
        self._ahead: dict[str, AcquiredLease] = {}
        """Leases that were taken, and are not used yet."""
        self._renewed_at = 0.0
        """Time of the last renewal of all leases, on the monotonic clock."""
        self._coming: list[ComingThreads] = []
        self._epoch = 0
        """Highest epoch that this owner has had, of any lease."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._heart: threading.Thread | None = None

    @contextmanager
    def hold(self, thread_id: str, doing: str = RUN, *, joins: bool = False) -> Generator[Lease]:
        """Hold the lease of a thread inside the block. Raises `RunError` if it is held already.

        `doing`: purpose (`RUN`, `CHAT`, `COMMAND`). Each has a lease of its own: a conversation
        holds one while it is open, and another while one of its turns runs. `joins`: writes of a
        run's steps go with the next commit (`HeldThread.joins`).
        """
        key = _key(thread_id, doing)
        with self._lock:
            if key in self._held:
                raise _taken(thread_id, doing, "this process")
            self._held.add(key)
        lease = Lease()
        held = None
        try:
            acquired = self._take(key, thread_id, doing)
            lease.new = acquired.new
            held = HeldLease(key, acquired.epoch)
            self._fence.add(thread_id, held, lease.lose)
            if lease.new or joins:
                self._database.held.begin(
                    thread_id, acquired.generation, new=lease.new, joins=joins
                )
            self._beat()
            yield lease
        finally:
            if held is not None:
                self._fence.remove(thread_id, held)
            try:  # before this process may take it again
                self._database.defer(lambda cursor: self._release(cursor, key, held))
            finally:
                with self._lock:
                    self._held.discard(key)

    @contextmanager
    def ahead(self, thread_ids: Sequence[str]) -> Generator[None]:
        """Take leases in batches for threads that run inside the block, in about this order.

        Taking a thread's lease also takes those of the next threads, in one transaction, if they
        have no records. Unused leases are released at the end.
        """
        coming = ComingThreads(thread_ids)
        with self._lock:
            self._coming.append(coming)
        try:
            yield
        finally:
            with self._lock:
                self._coming.remove(coming)
                for name in coming.asked_for:
                    self._ahead.pop(name, None)
                unused = coming.asked_for - self._held
                epoch = self._epoch
            self._give_back(unused, epoch)

    def _take(self, key: str, thread_id: str, doing: str) -> AcquiredLease:
        others: list[str] = []
        with self._lock:
            coming = (
                next((each for each in self._coming if thread_id in each), None)
                if doing == RUN
                else None
            )
            if coming is not None:
                coming.asked_for.discard(thread_id)
                taken = self._ahead.pop(thread_id, None)
                if (
                    taken is not None
                    and time.monotonic() < max(taken.at, self._renewed_at) + LEASE_SECONDS
                ):
                    return taken
                others = coming.ask_for(thread_id)
        generation = self._database.held.generation
        now = time.monotonic()

        def acquire(cursor: WriteCursor) -> tuple[tuple[int, bool] | RunError, dict[str, int]]:
            found = self._acquire(cursor, key, thread_id, doing)
            return found, (
                self._acquire_new(cursor, others)
                if others and not isinstance(found, RunError)
                else {}
            )

        found, more = self._database.add(acquire)
        if isinstance(found, RunError):
            raise found
        epoch, new = found
        with self._lock:
            expected = (
                coming.asked_for if coming is not None and coming in self._coming else set[str]()
            )
            # one of them may have been taken separately meanwhile
            kept = more.keys() & expected - self._held
            self._ahead |= {name: AcquiredLease(more[name], True, generation, now) for name in kept}
            unused = more.keys() - kept - self._held
            last = max(more.values(), default=0)
        self._give_back(unused, last)
        return AcquiredLease(epoch, new, generation, now)

    def _give_back(self, thread_ids: Collection[str], epoch: int) -> None:
        """Release unused leases up to `epoch`. A lease that is taken again meanwhile has a higher
        epoch.
        """
        query = "UPDATE leases SET expires_at = 0 WHERE thread_id = ? AND owner = ? AND epoch <= ?"
        rows = [(name, self._fence.owner, epoch) for name in thread_ids]
        if rows:
            self._database.defer(lambda cursor: cursor.executemany(query, rows))

    def take_from(self, owner: str) -> None:
        """Release the leases of an owner that is known to be dead. If the owner is alive after all,
        it has lost them.
        """
        query = (
            "UPDATE leases SET owner = ?, epoch = epoch + 1, expires_at = 0 WHERE owner = ? AND"
            " expires_at > 0"
        )

        def take(cursor: WriteCursor) -> None:
            self._database.end_writes_of(cursor, owner)
            cursor.execute(query, (self._fence.owner, owner))

        self._database.add(take)

    def _acquire_new(self, cursor: WriteCursor, thread_ids: Sequence[str]) -> dict[str, int]:
        """Take the leases of threads without any records or leases. Returns their epochs by
        thread.
        """
        some = f"({placeholders(len(thread_ids))})"
        known = set[str]()
        for table in (*_WITH_THREADS, "leases"):
            rows = cursor.execute(
                f"SELECT DISTINCT thread_id FROM {table} WHERE thread_id IN {some}", thread_ids
            ).fetchall()
            known |= {str(row[0]) for row in rows}
        self._epoch += 1
        now, at = _now(self._database)
        facts = self._fence.owner, _noted_process(self._database), *at, LEASE_SECONDS, self._epoch
        cursor.executemany(
            "INSERT INTO leases (thread_id, owner, process, expires_at, epoch) VALUES (?, ?, ?,"
            f" {now} + ?, ?) ON CONFLICT (thread_id) DO NOTHING",
            [(name, *facts) for name in thread_ids if name not in known],
        )
        query = (
            f"SELECT thread_id FROM leases WHERE owner = ? AND epoch = ? AND thread_id IN {some}"
        )
        ours = cursor.execute(query, (self._fence.owner, self._epoch, *thread_ids)).fetchall()
        return {str(row[0]): self._epoch for row in ours}

    def _acquire(
        self, cursor: Cursor, key: str, thread_id: str, doing: str
    ) -> tuple[int, bool] | RunError:
        """Take a lease. Returns its epoch, and True if it is the first one of a run on a thread
        without records.

        If another owner has it, an error is returned, not raised, so that the transaction is
        committed.
        """
        owner = self._fence.owner
        now, at = _now(self._database)
        query = (
            f"SELECT owner, process, expires_at, expires_at - {now}, epoch FROM leases WHERE"
            " thread_id = ?"
        )
        row = cursor.execute(query, (*at, key)).fetchone() or (owner, "", 0.0, 0.0, 0)
        had_by = str(row[0])
        process = str(row[1])
        expires_at = float(row[2])
        epoch_before = int(row[4])
        if (
            had_by != owner
            and (left := _seconds_left(self._database, process, expires_at, float(row[3]))) > 0
        ):
            if left > LEASE_SECONDS:
                self._cut_down(cursor, key, had_by, epoch_before, expires_at)
            return _taken(thread_id, doing, f"process {readable(process)}")
        if had_by != owner:
            self._database.likely_heads.pop(thread_id, None)  # may be outdated
        if had_by != owner and expires_at > 0:
            self._database.end_writes_of(cursor, had_by)
        # The epoch is higher than any that this owner has had, even if the row was deleted since,
        # so lost leases do not become valid again.
        epoch = max(epoch_before, self._epoch) + 1
        # On a server, another transaction may have taken the lease since its row was read. So the
        # lease is taken only if the row is unchanged.
        cursor.execute(
            "INSERT INTO leases (thread_id, owner, process, expires_at, epoch) VALUES (?, ?, ?,"
            f" {now} + ?, ?) ON CONFLICT (thread_id) DO UPDATE SET owner = excluded.owner, process"
            " = excluded.process, expires_at = excluded.expires_at, epoch = excluded.epoch WHERE"
            " leases.owner = ? AND leases.epoch = ? RETURNING epoch",
            (
                key,
                owner,
                _noted_process(self._database),
                *at,
                LEASE_SECONDS,
                epoch,
                had_by,
                epoch_before,
            ),
        )
        taken = cursor.fetchone()
        if taken is None:
            return _taken(thread_id, doing, "another process")
        self._epoch = max(epoch, self._epoch)
        new = (
            doing == RUN
            and not process
            and cursor.execute(_ON_RECORD, (thread_id,) * _TABLES).fetchone() is None
        )
        return int(taken[0]), new

    def _cut_down(
        self, cursor: Cursor, key: str, owner: str, epoch: int, expires_at: float
    ) -> None:
        """Shorten a lease that lasts too long, as a clock that was ahead has written it."""
        now, at = _now(self._database)
        cursor.execute(
            f"UPDATE leases SET expires_at = {now} + ? "
            "WHERE thread_id = ? AND owner = ? AND epoch = ? AND expires_at = ?",
            (*at, LEASE_SECONDS, key, owner, epoch, expires_at),
        )

    def _release(self, cursor: Cursor, key: str, held: HeldLease | None) -> None:
        """Release a lease. `held` is None if a commit whose answer was lost may have taken it."""
        query = "UPDATE leases SET expires_at = 0 WHERE thread_id = ? AND owner = ?"
        values = (
            key,
            self._fence.owner,
        )
        if held is None:
            cursor.execute(query, values)
        else:
            cursor.execute(f"{query} AND epoch = ?", (*values, held.epoch))

    def _beat(self) -> None:
        """Start the heartbeat, once. It ends with the store or the process."""
        with self._lock:
            if self._heart is None:
                self._heart = threading.Thread(target=self._keep, name="store-leases", daemon=True)
                self._heart.start()

    def _keep(self) -> None:
        guard = LoopGuard("store-leases")
        while not self._stop.wait(HEARTBEAT_SECONDS):
            with (
                guard,
                suppress(StoreError),
            ):  # the next beat tries again, even if other work of the commit failed
                self.renew()

    def renew(self) -> None:
        """Extend all held leases, and stop the holders of lost ones."""
        if (held := self._fence.held) or self._ahead:
            now = time.monotonic()
            lost, ours = self._database.add(lambda cursor: self._renew(cursor, held))
            for error in lost:
                self._fence.lose(error)
            with self._lock:
                self._ahead = {
                    name: it
                    for name, it in self._ahead.items()
                    if HeldLease(name, it.epoch) in ours
                }
                self._renewed_at = now

    def _renew(
        self, cursor: WriteCursor, held: dict[HeldLease, str]
    ) -> tuple[list[LeaseLostError], set[HeldLease]]:
        """Extend all leases of this owner. Returns errors for lost ones, and the valid leases."""
        now, at = _now(self._database)
        cursor.execute(
            f"UPDATE leases SET expires_at = {now} + ?, process = ? WHERE owner = ? AND expires_at"
            " > 0 RETURNING thread_id, epoch",
            (*at, LEASE_SECONDS, _noted_process(self._database), self._fence.owner),
        )
        ours = {HeldLease(str(key), int(epoch)) for key, epoch in cursor.fetchall()}
        given_back = held.keys() - self._fence.held.keys()
        return [
            lost_error(cursor, held[lease], lease) for lease in held.keys() - ours - given_back
        ], ours

    def close(self) -> None:
        self._stop.set()
        if self._heart is not None:
            self._heart.join()


def _key(thread_id: str, doing: str) -> str:
    return thread_id if doing == RUN else f"{thread_id} {doing}"


def _now(database: Database) -> tuple[str, tuple[float, ...]]:
    """Current time by the clock of `expires_at` in SQL, with its values: the server's, or else this
    machine's.
    """
    return (database.server_clock, ()) if database.server_clock else ("?", (time.time(),))


def _seconds_left(database: Database, process: str, expires_at: float, by_wall: float) -> float:
    """Seconds until a lease ends (0 or less if it has ended). `by_wall`: seconds left by the clock
    of `_now`.
    """
    if expires_at <= 0 or _is_gone(process):
        return 0.0
    _, _, _, boot, _, ahead = _parts(process)
    if database.server_clock or not boot or not (here := _processes_of()[0]):
        return by_wall
    if boot != here:  # the machine was restarted since
        return 0.0
    try:
        return expires_at - float(ahead) - time.monotonic()
    except ValueError:
        return by_wall


def leased(database: Database, cursor: Cursor) -> set[str]:
    """Threads that a live process has a lease on, this process included."""
    now, at = _now(database)
    query = (
        f"SELECT thread_id, process, expires_at, expires_at - {now} FROM leases WHERE"
        " expires_at > 0"
    )
    found = cursor.execute(query, at).fetchall()
    keys = {
        str(key)
        for key, process, expires_at, left in found
        if _seconds_left(database, str(process), float(expires_at), float(left)) > 0
    }
    return keys | {key.removesuffix(f" {doing}") for key in keys for doing in (CHAT, COMMAND)}


def forget_leases(cursor: Cursor, thread_id: str, *, given_back: bool = False) -> None:
    """Delete the leases of a deleted thread. With `given_back`, held ones are kept."""
    but = " AND expires_at = 0" if given_back else ""
    for doing in (RUN, CHAT, COMMAND):
        cursor.execute(f"DELETE FROM leases WHERE thread_id = ?{but}", (_key(thread_id, doing),))


def forget_unused_leases(cursor: Cursor) -> None:
    """Delete released leases of threads that do not exist."""
    threads = [str(row[0]) for row in cursor.execute("SELECT id FROM threads").fetchall()]
    used = {_key(thread_id, doing) for thread_id in threads for doing in (RUN, CHAT, COMMAND)}
    given_back = cursor.execute("SELECT thread_id FROM leases WHERE expires_at = 0").fetchall()
    for key in {str(row[0]) for row in given_back} - used:  # a lease may be taken meanwhile
        cursor.execute("DELETE FROM leases WHERE thread_id = ? AND expires_at = 0", (key,))


def _taken(thread_id: str, doing: str, by: str) -> RunError:
    return RunError(
        f"Thread {thread_id!r} is being {doing} already, by {by}.",
        "Wait until it has ended, use another thread, or fork this one: `hrm-agent fork --help`.",
    )


def _this_process() -> str:
    """Host, number and start of this process, and the context of the number: kernel boot and PID
    namespace.
    """
    return _named(os.getpid())


def _noted_process(database: Database) -> str:
    """Name of this process in a row. For a file, with the difference between wall clock and
    monotonic clock.
    """
    process = _this_process()
    return process if database.server_clock else f"{process}/{time.time() - time.monotonic():.3f}"


def _parts(process: str) -> list[str]:
    """Host, number, start, boot, PID namespace and clock difference of a process (empty if not
    noted).
    """
    return [*process.split("/"), "", "", "", "", ""][:6]


@lru_cache(maxsize=1)
def _named(_: int) -> str:
    return "/".join((socket.gethostname(), str(os.getpid()), _started("self"), *_processes_of()))


os.register_at_fork(after_in_child=_named.cache_clear)


def _is_gone(process: str) -> bool:
    """True if a process is dead, even if its number was reused.

    Process numbers are compared only within one boot of the kernel and one PID namespace, as two
    containers may have one host name. Other processes cannot be seen, and only time decides.
    """
    _, number, started, *place = _parts(process)[:5]
    if not number.isdecimal() or not started or tuple(place) != _processes_of() or "" in place:
        return False
    return _started(number) != started


def _processes_of() -> tuple[str, str]:
    """Boot id of the kernel, and PID namespace (empty if `/proc` does not show this process's
    own).
    """
    boot = ""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        if str(Path("/proc/self").readlink()) != str(os.getpid()):  # of another namespace
            return boot, ""
        return boot, str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return boot, ""


def _started(process: str) -> str:
    """Start time of a process in Linux clock ticks (empty if it does not run)."""
    try:
        fields = (
            Path(f"/proc/{process}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()
        )
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
