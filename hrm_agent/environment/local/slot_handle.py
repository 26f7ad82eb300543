"""Host's end of a slot: its socket, its memory files and its state."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial

from hrm_agent.environment.base import ExecutionResult
from hrm_agent.environment.local.oom_kills import OomKills
from hrm_agent.environment.local.slot_files import OUTPUT_FACTOR, SlotFiles, outcome
from hrm_agent.environment.local.zygote_process import ZygoteProcess, is_hung_up
from hrm_agent.environment.sandbox.protocol import REQUEST, Ended, Operation, Reply, Request
from hrm_agent.environment.sandbox.system_calls import ARCHITECTURES, NUMBERS
from hrm_agent.environment.scheduler.workers import Work
from hrm_agent.trajectory import ToolStatus

__all__ = ["SlotHandle", "SlotPool", "refused_calls"]


MAX_SILENT_DEATHS, GIVEN_UP_SECONDS = 3, 10.0
"""Deaths without a response from a slot after which a zygote is given up, and for how many
seconds.
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
    """Number of the session whose process it holds (0 if none)."""
    work: Work | None = None
    """Current work (None while idle)."""
    call: int = 0
    """Number of the work's request."""
    killed: bool = False
    """True once the host has requested the end of its work."""
    calls: int = 0
    """Number of calls that it has run."""
    worn: bool = False
    """True if it is to be replaced: after `MAX_CALLS`, any end but `ok` or `error`, or the death of
    an idle session.
    """
    oom_kills: int = 0
    """Number of processes killed by the kernel for lack of memory, at the start of its work or
    shortly before.
    """
    refused: dict[str, int] = field(default_factory=dict[str, int])
    """System calls refused to its current work: name -> count."""
    ending: bool = False
    """True until it reports that the processes of its last session are gone. Until then they can
    read and write its files.
    """

    def send(self, work: Work, call: int, *, crowded: bool) -> bool:
        """Send `work` to the slot; False if the slot is gone."""
        self.call, self.work, self.killed, self.refused = call, work, False, {}
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
        """True if the slot is gone, even if its end has not been processed yet."""
        return is_hung_up(self.line)

    def kill(self) -> None:
        """Request the end of its work. If the slot has just died, its end is processed as usual."""
        self.killed = True
        with suppress(OSError):
            self.line.send(REQUEST.pack(*Request(Operation.KILL, self.call)))

    def end_session(self, call: int) -> None:
        """Request the end of its session's process, which the slot will report. If the slot has
        just died, its end is processed as usual.
        """
        self.session, self.call, self.ending = 0, call, True
        with suppress(OSError):
            self.line.send(REQUEST.pack(*Request(Operation.END_SESSION, call)))

    def result(self, work: Work, reply: Reply, isolation: str) -> tuple[ExecutionResult, bool]:
        """Pair (outcome of its work, True if it was lost)."""
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
    """Process that its slots are forked from (None while it is not running)."""
    idle: list[SlotHandle] = field(default_factory=list[SlotHandle])
    """Slots that can take a work at once."""
    waiting: list[Work] = field(default_factory=list[Work])
    """Works that wait for the start of the zygote."""
    silent_deaths: int = 0
    """Deaths of zygotes since a slot responded."""
    last_death: float = 0.0
    """Time of the last death, by the monotonic clock."""
    unneeded: int = 0
    """Number of slots that were idle all the time since `counted_at`."""
    counted_at: float = 0.0
    """Start of that count, by the monotonic clock."""

    def lose_zygote(self) -> None:
        """Note the death of the zygote."""
        self.zygote, self.last_death = None, time.monotonic()
        self.silent_deaths += 1

    def is_given_up(self) -> bool:
        """True if no zygote is to be started for now. It is tried again later, since the machine
        may have been the reason.
        """
        return (
            self.silent_deaths >= MAX_SILENT_DEATHS
            and time.monotonic() - self.last_death < GIVEN_UP_SECONDS
        )

    def take(self) -> SlotHandle | None:
        """Remove and return the slot that was idle longest, whose next child is likely ready (None
        if no slot is idle).
        """
        slot = self.idle.pop(0) if self.idle else None
        self.unneeded = min(self.unneeded, len(self.idle))
        return slot

    def surplus(self, most: int, seconds: float) -> list[SlotHandle]:
        """Idle slots above `most` that were unused for `seconds`. Has to be called repeatedly."""
        now, found = time.monotonic(), list[SlotHandle]()
        if len(self.idle) <= most:
            self.counted_at = now
        elif now - self.counted_at >= seconds:
            found = self.idle[: max(0, min(self.unneeded, len(self.idle)) - most)]
            self.unneeded, self.counted_at = len(self.idle) - len(found), now
        return found
