"""Slots of an environment, at the host's end: which exist, their state, and which are idle.

Every method of `SlotTable` except `give_up_surplus` requires the lock of the workers that the table
belongs to. If a method raises, it has discarded the slot that it was making or sending to.
"""

from __future__ import annotations

import os
import re
import secrets
import select
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count

from hrm_agent.environment.base import ExecutionResult
from hrm_agent.environment.local.slot_files import OUTPUT_FACTOR, SlotFiles, outcome
from hrm_agent.environment.local.zygote_process import ZygoteProcess, is_hung_up
from hrm_agent.environment.sandbox.memory import figure
from hrm_agent.environment.sandbox.protocol import (
    REQUEST,
    SLOT_NUMBERS,
    Ended,
    Operation,
    Reply,
    Request,
)
from hrm_agent.environment.sandbox.system_calls import ARCHITECTURES, NUMBERS
from hrm_agent.environment.scheduler.workers import Work
from hrm_agent.trajectory import ToolStatus

__all__ = ["OomKills", "SlotHandle", "SlotPool", "SlotTable", "refused_calls"]

RECENT_SECONDS = 1.0
"""Age in seconds up to which a count is reused for new calls. Counting is slow, since the kernel
adds up a figure per processor.
"""


class OomKills:
    """Number of processes that the kernel killed for lack of memory, on the whole machine. If
    /proc/vmstat has no such figure, no kill is ever detected.

    The exit status of a killed process does not identify the killer: the process itself or another
    process of its call may have sent SIGKILL.
    """

    def __init__(self, path: str = "/proc/vmstat") -> None:
        self._path = path
        self._count, self._counted_at = 0, float("-inf")

    def recent(self) -> int:
        """Number of kills so far, by a count that is at most `RECENT_SECONDS` old."""
        now = time.monotonic()
        if now - self._counted_at >= RECENT_SECONDS:
            self._count = self._now()
            self._counted_at = now
        return self._count

    def since(self, count: int) -> bool:
        """True if there were more kills than `count`."""
        return self._now() > count

    def _now(self) -> int:
        try:
            file = os.open(self._path, os.O_RDONLY)
        except OSError:
            return 0
        try:
            return figure(os.pread(file, 1 << 16, 0), b"oom_kill ")
        except OSError:
            return 0
        finally:
            os.close(file)


MAX_SILENT_DEATHS, GIVEN_UP_SECONDS = 3, 10.0
"""Number of deaths of a zygote, without a response from a slot in between, after which no new
zygote is started, and seconds until the next try.
"""
MAX_CALLS = 1000
"""Calls after which a slot is replaced by a new one, which costs milliseconds."""


@cache
def _names() -> dict[int, str]:
    column = ARCHITECTURES[os.uname().machine][1]
    return {
        number: name for name, numbers in NUMBERS.items() if (number := numbers[column]) is not None
    }


def refused_calls(flat: Sequence[int]) -> dict[str, int]:
    """Counts by name of the system call, from a flat sequence number, count, number, count, ..."""
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return {_names().get(number, str(number)): count for number, count in pairs if count}


@dataclass(slots=True, eq=False)
class SlotHandle:
    """Host's state of one slot."""

    pool: SlotPool
    """Pool of the slot."""
    line: socket.socket
    """The host's end of the slot's socket: requests out, replies in."""
    files: SlotFiles
    """Memory files for code, output and value, shared with the slot."""
    session: int = 0
    """Number of the session whose process the slot holds (0 for no session)."""
    work: Work | None = None
    """Current work (None while idle)."""
    call: int = 0
    """Number of the last request (`Request.call`)."""
    killed: bool = False
    """True once the host has requested the end of the current work."""
    calls: int = 0
    """Number of calls that the slot has run."""
    worn: bool = False
    """True if the slot is to be replaced: after `MAX_CALLS`, after any status but `ok` or `error`,
    or after the death of an idle session.
    """
    oom_kills: int = 0
    """Number of processes killed by the kernel for lack of memory, counted at the start of the
    current work or shortly before.
    """
    refused: dict[str, int] = field(default_factory=dict[str, int])
    """System calls refused to the current work: name -> count."""
    ending: bool = False
    """True until the slot reports that the processes of its last session are gone. Until then these
    processes can read and write the slot's files.
    """

    def send(self, work: Work, call: int, *, crowded: bool) -> bool:
        """Send `work` to the slot; False if the slot is gone."""
        self.call = call
        self.work = work
        self.killed = False
        self.refused = {}
        self.oom_kills = self.pool.oom_kills.recent()
        limits = work.limits
        request = Request(
            Operation.RUN,
            call,
            session=work.session != 0,
            fresh=work.fresh,
            wall_seconds=limits.wall_seconds,
            cpu_seconds=limits.cpu_seconds,
            memory_bytes=limits.memory_bytes,
            file_bytes=limits.output_bytes * OUTPUT_FACTOR,
            value_bytes=limits.output_bytes,
            seed=work.seed,
            crowded=crowded,
        )
        try:
            self.files.prepare(work.code)
            self.line.send(REQUEST.pack(*request))
        except BaseException as error:
            self.work = None
            if isinstance(error, OSError):
                return False
            raise
        return True

    def has_ended(self) -> bool:
        """True if the slot is gone, even if the host has not processed its end yet."""
        return is_hung_up(self.line)

    def kill(self) -> None:
        """Request the end of the current work. If the slot has just died, its end is processed as
        usual.
        """
        self.killed = True
        with suppress(OSError):
            self.line.send(REQUEST.pack(*Request(Operation.KILL, self.call)))

    def end_session(self, call: int) -> None:
        """Request the end of the session's process, which the slot will report. If the slot has
        just died, the slot's end is processed as usual.
        """
        self.session = 0
        self.call = call
        self.ending = True
        with suppress(OSError):
            self.line.send(REQUEST.pack(*Request(Operation.END_SESSION, call)))

    def result(self, work: Work, reply: Reply, isolation: str) -> tuple[ExecutionResult, bool]:
        """Pair (outcome of `work`, True if the work was lost before it began)."""
        self.calls += 1
        begun = reply.ended not in (Ended.NOT_STARTED, Ended.GONE)
        started = begun if work.session else self.files.started
        killed = partial(self.pool.oom_kills.since, self.oom_kills)
        found = outcome(
            reply, self.files, work.limits, isolation, started=started, oom_killed=killed
        )
        if self.refused:
            found = replace(found, refused=self.refused)
        self.worn = self.calls >= MAX_CALLS or found.status not in (ToolStatus.OK, ToolStatus.ERROR)
        return found, not started and not self.killed


@dataclass(slots=True, eq=False)
class SlotPool:
    """Slots that are forked from one kind of zygote."""

    imports: Sequence[str]
    """Packages that the zygote has imported."""
    oom_kills: OomKills
    """Kernel's count of processes killed for lack of memory."""
    zygote: ZygoteProcess | None = None
    """Process that the pool's slots are forked from (None while no zygote is running)."""
    idle: list[SlotHandle] = field(default_factory=list[SlotHandle])
    """Slots that can take a work at once."""
    waiting: list[Work] = field(default_factory=list[Work])
    """Works that wait for the start of the zygote."""
    silent_deaths: int = 0
    """Number of deaths of zygotes since a slot last responded."""
    last_death: float = 0.0
    """Time of the last death, by the monotonic clock."""
    unneeded: int = 0
    """Number of slots that were idle all the time since `counted_at`."""
    counted_at: float = 0.0
    """Time at which the count of `unneeded` began, by the monotonic clock."""

    def lose_zygote(self) -> None:
        """Note the death of the zygote."""
        self.zygote = None
        self.last_death = time.monotonic()
        self.silent_deaths += 1

    def is_given_up(self) -> bool:
        """True if no zygote is to be started for now. A start is tried again later, since the
        machine may have been the reason for the deaths.
        """
        return (
            self.silent_deaths >= MAX_SILENT_DEATHS
            and time.monotonic() - self.last_death < GIVEN_UP_SECONDS
        )

    def take(self) -> SlotHandle | None:
        """Remove and return the slot that was idle longest (None if no slot is idle). It has
        probably made the child of its next call in advance.
        """
        slot = self.idle.pop(0) if self.idle else None
        self.unneeded = min(self.unneeded, len(self.idle))
        return slot

    def surplus(self, most: int, seconds: float) -> list[SlotHandle]:
        """Idle slots above `most` that were unused for `seconds`. The time is measured from call to
        call, so the method has to be called repeatedly.
        """
        now = time.monotonic()
        found = list[SlotHandle]()
        if len(self.idle) <= most:
            self.counted_at = now
        elif now - self.counted_at >= seconds:
            found = self.idle[: max(0, min(self.unneeded, len(self.idle)) - most)]
            self.unneeded = len(self.idle) - len(found)
            self.counted_at = now
        return found


SURPLUS_SECONDS, QUIET_SECONDS = 1.0, 0.05
"""Seconds for which unused idle slots above `slots` are kept: the first while a call or session is
alive, the second while none is.
"""


class SlotTable:
    """Slots of one environment."""

    def __init__(
        self, slots: int, packages: Sequence[str], poll: select.epoll, spare_seconds: float | None
    ) -> None:
        """Make an empty table. `poll` watches the slots. `spare_seconds`: seconds for which idle
        slots above `slots` are kept (None: `SURPLUS_SECONDS` and `QUIET_SECONDS`).
        """
        self._slots = slots
        self._poll = poll
        self._spare = spare_seconds
        self._crowd = max(1, (os.cpu_count() or 1) // 2)
        """Number of busy slots from which requests are marked `crowded`."""
        self._words = (
            re.compile(rf"\b(?:{'|'.join(map(re.escape, packages))})\b") if packages else None
        )
        kills = OomKills()
        self.bare, self._scientific = self.pools = SlotPool((), kills), SlotPool(packages, kills)
        self.by_line: dict[int, SlotHandle] = {}
        """Slots by file descriptor of their socket."""
        self.sessions: dict[int, SlotHandle] = {}
        """Slots by the number of the session that each holds."""
        self.numbers = count(1)
        """Numbers for requests."""
        self._slot_numbers = count(secrets.randbelow(SLOT_NUMBERS))
        """Slot numbers, with a random start. If the host is root, a slot's user id is derived from
        its number. By the random start, slots of two environments do not share a user, and so not
        the kernel's limits per user.
        """

    def place(self, work: Work) -> bool:
        """Start `work` in a slot. False if its pool has neither an idle slot nor a zygote to make
        one, so that the work has to wait.
        """
        scientific = self._words is not None and self._words.search(work.code) is not None
        pool = self._scientific if scientific else self.bare
        while not work.again and (slot := pool.take()) is not None:
            if self.send(slot, work):
                return True
            self.discard(slot)
        zygote = pool.zygote
        if (
            zygote is not None
            and not zygote.has_ended()
            and self.send(self.make(pool, zygote), work)
        ):
            return True
        pool.waiting.append(work)
        return False

    def make(self, pool: SlotPool, zygote: ZygoteProcess) -> SlotHandle:
        """Make a slot. Raises OSError if this process cannot open more files."""
        files = SlotFiles()
        try:
            line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            files.close()
            raise
        line.setblocking(False)  # the socket never holds more than the requests of one call
        slot = SlotHandle(pool, line, files)
        self.by_line[line.fileno()] = slot
        with theirs:
            try:
                self._poll.register(line.fileno(), select.EPOLLIN)
            except OSError:
                self.discard(slot)
                raise
            with suppress(OSError):  # the zygote is gone, which is noticed elsewhere
                zygote.new_slot(
                    next(self._slot_numbers) % SLOT_NUMBERS,
                    [theirs.fileno(), *slot.files.descriptors],
                )
        return slot

    def send(self, slot: SlotHandle, work: Work) -> bool:
        """Send `work` to `slot`; False if the slot is gone."""
        crowded = sum(other.work is not None for other in self.by_line.values()) >= self._crowd
        try:
            sent = slot.send(work, next(self.numbers), crowded=crowded)
        except Exception:
            self.discard(slot)
            raise
        if sent and work.session:
            slot.session = work.session
            self.sessions[work.session] = slot
        return sent

    def set_idle(self, slot: SlotHandle) -> None:
        """Make a slot idle, or replace it if it is worn."""
        pool = slot.pool
        if slot.worn:
            self.discard(slot)
            if pool.zygote is not None and len(pool.idle) < self._slots:
                pool.idle.append(self.make(pool, pool.zygote))
        else:
            pool.idle.append(slot)

    def give_up_surplus(self, lock: threading.Lock) -> float | None:
        """Discard unused idle slots, and return the seconds until the next check (None if no check
        is needed). The caller must not hold the lock.
        """
        if all(len(pool.idle) <= self._slots for pool in self.pools):
            return None
        with lock:
            busy = bool(self.sessions) or any(
                slot.work is not None for slot in self.by_line.values()
            )
            seconds = self._spare or (SURPLUS_SECONDS if busy else QUIET_SECONDS)
            for slot in [
                slot for pool in self.pools for slot in pool.surplus(self._slots, seconds)
            ]:
                self.discard(slot)
        return seconds

    def discard(self, slot: SlotHandle) -> None:
        """Remove a slot. A live slot ends, since its socket closes. Harmless a second time."""
        if self.by_line.get(slot.line.fileno()) is not slot:
            return
        del self.by_line[slot.line.fileno()]
        with suppress(OSError):
            self._poll.unregister(slot.line.fileno())
        slot.line.close()
        slot.files.close()
        if slot.session and self.sessions.get(slot.session) is slot:
            del self.sessions[slot.session]
        if slot in slot.pool.idle:
            slot.pool.idle.remove(slot)

    def discard_dead(self, pool: SlotPool) -> None:
        """Remove idle slots that are gone and whose end was not processed yet. If their zygote is
        gone, all of them are.
        """
        if pool.zygote is None or pool.zygote.has_ended():
            dead = list(pool.idle)
        else:
            dead = [slot for slot in pool.idle if slot.has_ended()]
        for slot in dead:
            self.discard(slot)
