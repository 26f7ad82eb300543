"""Slots of an environment: which exist, their state, and which are idle.

Every method but one requires the lock of the workers that the table belongs to. If a method raises,
new slots and started works are discarded.
"""

from __future__ import annotations

import os
import re
import secrets
import select
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import count

from hrm_agent.environment.local.oom_kills import OomKills
from hrm_agent.environment.local.slot_files import SlotFiles
from hrm_agent.environment.local.slot_handle import SlotHandle, SlotPool
from hrm_agent.environment.local.zygote_process import ZygoteProcess
from hrm_agent.environment.sandbox.protocol import SLOT_NUMBERS
from hrm_agent.environment.scheduler.workers import Work

__all__ = ["SlotTable"]

SURPLUS_SECONDS, QUIET_SECONDS = 1.0, 0.05
"""Seconds for which unused idle slots above `slots` are kept: while a call or session is alive, and
otherwise.
"""


class SlotTable:
    """Slots of one environment."""

    def __init__(
        self, slots: int, packages: Sequence[str], poll: select.epoll, spare_seconds: float | None
    ) -> None:
        """Make an empty table. `poll` watches the slots. `spare_seconds`: how long idle slots above
        `slots` are kept; None takes the defaults.
        """
        self._slots, self._poll, self._spare = slots, poll, spare_seconds
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
        """Slots by number of their session."""
        self.numbers = count(1)
        """Numbers for requests."""
        self._slot_numbers = count(secrets.randbelow(SLOT_NUMBERS))
        """Slot numbers, with a random start. If the host is root, a slot's user is derived from its
        number: per-user limits of the kernel must not be shared with slots of another environment.
        """

    def place(self, work: Work) -> bool:
        """Start `work` in a slot; False if its pool has neither a slot nor a zygote to make one,
        and the work waits.
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
        line.setblocking(False)  # it never holds more than the requests of one call
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
        """Discard unused idle slots, and return the seconds until the next check (None if it is not
        needed). (Without the lock.)
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
        """Remove a slot. If it is alive it ends, since its socket closes. Harmless a second
        time.
        """
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
        """Remove idle slots that are gone and whose end was not processed yet: all of them if their
        zygote is gone.
        """
        if pool.zygote is None or pool.zygote.has_ended():
            dead = list(pool.idle)
        else:
            dead = [slot for slot in pool.idle if slot.has_ended()]
        for slot in dead:
            self.discard(slot)
