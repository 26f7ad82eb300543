"""`Workers` on this machine: the host's end of the slots that snippets run in.

There are two pools of slots, each with a zygote: `bare` with the standard library, `scientific`
with the packages that snippets may import. A call is routed by the package names in its code.
Zygotes fork slots on demand, and slots are reused. One thread receives the slots' messages. The
same thread starts zygotes, since a zygote dies with the thread that started it. No error ends the
thread: an error costs at most one call and is counted and logged, and the slot or zygote concerned
is replaced.

`sandbox/kernel.py` describes how a slot is isolated, `sandbox/slot.py` how a call is watched.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from hrm_agent.basics.guarded_loop import LoopGuard
from hrm_agent.environment.base import ExecutionResult
from hrm_agent.environment.isolation import (
    DEFAULT_ISOLATION,
    LESS_ISOLATION_HINT,
    Isolation,
    level_of,
)
from hrm_agent.environment.local.slot_files import infrastructure_failure, session_gone
from hrm_agent.environment.local.slot_table import SlotHandle, SlotTable, refused_calls
from hrm_agent.environment.local.zygote_process import (
    ZygoteHome,
    ZygoteProcess,
    installed,
    wait_until,
)
from hrm_agent.environment.sandbox.protocol import READY_BYTES, REFUSED, REPLY, Ended, Reply
from hrm_agent.environment.scheduler.workers import Work
from hrm_agent.errors import HrmError
from hrm_agent.trajectory import ToolStatus

__all__ = ["SCIENTIFIC", "LocalWorkers", "Wake", "default_slots"]

SCIENTIFIC = ("numpy", "sympy")
"""Packages that snippets may import by default, if they are installed."""
FAULT_SECONDS = 0.05
"""Pause in seconds of the thread when polling itself fails."""


def default_slots() -> int:
    """Default number of slots: two per core, at least 4 and at most 64. More slots would make calls
    wait for a core while their wall-clock time runs.
    """
    return min(64, max(4, 2 * (os.cpu_count() or 1)))


class Wake:
    """Eventfd that the thread polls. Thread-safe; harmless once it is closed."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """File descriptor. It is readable after `ring` until `answer` is called."""
        self._lock = threading.Lock()
        self._asked: list[threading.Event] = []
        self._closed = False

    def ring(self) -> None:
        """Wake the thread."""
        with self._lock, suppress(BlockingIOError):  # a full counter is readable anyway
            if not self._closed:
                os.eventfd_write(self.descriptor, 1)

    def answer(self) -> None:
        """Reset the eventfd and notify the threads that wait in `is_answered`. Called by the
        serving thread.
        """
        with suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)
        with self._lock:
            asked = self._asked
            self._asked = []
        for event in asked:
            event.set()

    def is_answered(self, seconds: float) -> bool:
        """True if the thread calls `answer` within `seconds`; blocks until then."""
        event = threading.Event()
        with self._lock:
            if self._closed:
                return False
            self._asked.append(event)
        self.ring()
        answered = event.wait(seconds)
        if not answered:
            with self._lock, suppress(ValueError):
                self._asked.remove(event)
        return answered

    def close(self) -> None:
        """Close the eventfd. Harmless a second time."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.descriptor)


class LocalWorkers:
    """`Workers` on this machine. Raises HrmError if the machine isolates less than `isolation`."""

    def __init__(
        self,
        slots: int | None = None,
        *,
        isolation: Isolation = DEFAULT_ISOLATION,
        packages: Sequence[str] | None = None,
        cgroup: Path | None = None,
        spare_seconds: float | None = None,
    ) -> None:
        """Start the thread and the first zygote.

        `packages`: installed distributions that snippets may import (None: numpy and sympy, if they
        are installed). `cgroup`: a delegated cgroup; it makes L3 the least level (None: if
        `isolation` is L3, the cgroup of this process). `spare_seconds`: seconds for which idle
        slots above `slots` are kept (None: one, or less if no call or session is alive).
        """
        if sys.platform != "linux":
            raise HrmError(
                f"Model-written code is isolated by Linux; this is {sys.platform}.",
                "Run `hrm-agent environment serve` on a Linux machine, and name it here with"
                " --environment URL.",
            )
        self.slots = slots or default_slots()
        self.packages = installed(SCIENTIFIC) if packages is None else tuple(packages)
        """Packages that snippets may import besides the standard library."""
        self._wake, self._poll = Wake(), select.epoll()
        self._poll.register(self._wake.descriptor, select.EPOLLIN)
        self._lock = threading.Lock()
        self._table = SlotTable(self.slots, self.packages, self._poll, spare_seconds)
        self._by_line = self._table.by_line
        self._finished: list[tuple[Work, ExecutionResult, bool]] = []
        """Ended works. The thread has to call `done` of each."""
        self._on_death: Callable[[int], None] = lambda session: None
        self._down = ""
        self.slot_deaths = 0
        self._guard = LoopGuard("sandbox", rests=False)
        started: Future[None] = Future()
        given = started, isolation if cgroup is None else Isolation.L3, cgroup
        self._thread = threading.Thread(target=self._serve, args=given, name="sandbox", daemon=True)
        self._thread.start()
        started.result()

    # methods that the scheduler calls

    def start(self, work: Work) -> None:
        with self._lock:
            if self._down:
                self._notify(work, self._failure(self._down), lost=False)
                return
            slot = self._table.sessions.get(work.session)
            if slot is None and work.session and not work.fresh:
                self._notify(work, session_gone(self.isolation), lost=True)
            elif slot is None:
                if not self._table.place(work):
                    self._wake.ring()
            elif not self._table.send(slot, work):
                # the slot's last message, which the thread will read, shows why it ended
                if slot.has_ended():
                    slot.work = work
                    return
                self._table.discard(slot)
                self._notify(
                    work, self._failure("the call could not be handed to its session"), lost=True
                )

    def kill(self, work: Work) -> None:
        with self._lock:
            slot = next((slot for slot in self._by_line.values() if slot.work is work), None)
            if slot is not None:
                slot.kill()
            for pool in self._table.pools:
                if work in pool.waiting:
                    pool.waiting.remove(work)
                    self._notify(work, self._failure("killed before it began"), lost=False)

    def end_session(self, session: int) -> None:
        with self._lock:
            slot = self._table.sessions.pop(session, None)
            if slot is not None and slot.work is None:
                slot.end_session(next(self._table.numbers))

    def on_session_death(self, callback: Callable[[int], None]) -> None:
        self._on_death = callback

    def responds(self, seconds: float) -> bool:
        return not self._down and self._wake.is_answered(seconds)

    def close(self) -> None:
        with self._lock:
            self._down = self._down or "the environment was closed"
        if self._thread.is_alive():  # closing twice is no error
            self._wake.ring()
            self._thread.join()

    def abandon(self) -> None:
        """Close inherited sockets in a forked child of this process, without ending any slot."""
        for slot in self._by_line.values():
            slot.line.close()

    @property
    def faults(self) -> int:
        return self._guard.surprises

    @property
    def pid(self) -> int:
        """Process id of the bare fork server."""
        zygote = self._table.bare.zygote
        return zygote.pid if zygote is not None else 0

    def _notify(self, work: Work, result: ExecutionResult, *, lost: bool) -> None:
        """Have the thread call `done`, since the thread that starts a work holds locks."""
        self._finished.append((work, result, lost))
        self._wake.ring()

    def _failure(self, reason: str) -> ExecutionResult:
        return infrastructure_failure(reason, self.isolation)

    # methods of the serving thread

    def _serve(self, started: Future[None], least: Isolation, top: Path | None) -> None:
        try:
            self._start_isolated(least, top)
        except BaseException as error:
            self._poll.close()
            self._wake.close()
            started.set_exception(error)
            return
        started.set_result(None)
        try:
            while not self._down:
                self._turn()
        finally:
            self._end()

    def _turn(self) -> None:
        """Process the messages of the slots once. Errors are counted and logged."""
        try:
            events = self._poll.poll(self._table.give_up_surplus(self._lock))
        except BaseException as error:
            self._guard.caught(error)
            time.sleep(FAULT_SECONDS)
            events = []
        for descriptor, _ in events:
            if not self._guard.call(self._on_readable, descriptor):
                self._guard.call(self._give_up, descriptor)
        self._guard.call(self._start_zygotes)
        self._notify_finished()

    def _give_up(self, descriptor: int) -> None:
        """Replace the slot or zygote whose message could not be processed."""
        if descriptor == self._wake.descriptor:
            return
        with self._lock:
            slot = self._by_line.get(descriptor)
        if slot is not None:
            self._on_slot_lost(slot)
        else:
            self._on_zygote_readable(descriptor, broken=True)

    def _start_isolated(self, least: Isolation, top: Path | None) -> None:
        """Start with the strongest isolation available. Raises HrmError if that is less than
        `least`.
        """
        reason = first = ""
        grouped = least is Isolation.L3
        for isolated in (True, False):
            self._place_of_zygotes = ZygoteHome(
                self.packages, isolated=isolated, grouped=grouped, top=top
            )
            reason = self._probe()
            if first:  # the first attempt failed, so this one is without namespaces
                self.missing["namespaces"] = first
            first = reason
            self.isolation = level_of(self.missing)
            if not reason and self.isolation.holds(least):
                return
            self._end_zygotes()
            if least in (Isolation.L3, Isolation.L2):
                break
        missing = reason or "; ".join(f"{layer}: {why}" for layer, why in self.missing.items())
        why = f"This machine cannot isolate model-written code at level {least}: {missing}."
        raise HrmError(why, LESS_ISOLATION_HINT)

    def _probe(self) -> str:
        """Start the bare zygote and one slot, and set `missing`. Returns the reason why they cannot
        be started (empty if they can).
        """
        self.missing: dict[str, str] = {}
        """Layers that are not in force: layer -> reason."""
        bare = self._table.bare
        zygote = bare.zygote = ZygoteProcess(self._place_of_zygotes, ())
        if reason := zygote.handshake():
            self.missing["namespaces"] = reason
            return reason
        slot = self._table.make(bare, zygote)
        with suppress(OSError):
            wait_until(slot.line, select.POLLIN)
            if ready := slot.line.recv(READY_BYTES):
                self.missing.update(json.loads(ready))
                self._poll.register(zygote.control.fileno(), select.EPOLLIN)
                bare.idle.append(slot)
                return ""
        return f"no slot can be made ({zygote.last_words() or 'no message'})"

    def _on_readable(self, descriptor: int) -> None:
        if descriptor == self._wake.descriptor:
            self._wake.answer()
            return
        with self._lock:
            slot = self._by_line.get(descriptor)
        if slot is None:
            self._on_zygote_readable(descriptor)
            return
        try:
            data = slot.line.recv(READY_BYTES)
        # the event belonged to an ended slot, whose descriptor this slot has now
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if len(data) == REPLY.size:
            self._finish(slot, Reply(*REPLY.unpack(data)))
        elif len(data) == REFUSED.size:
            slot.refused = refused_calls(REFUSED.unpack(data))
        # the slot is gone, or it isolates less than the first slot
        elif not data or not set(json.loads(data)) <= set(self.missing):
            self._on_slot_lost(slot)

    def _finish(self, slot: SlotHandle, reply: Reply) -> None:
        with self._lock:
            if self._by_line.get(slot.line.fileno()) is not slot:
                return
            slot.pool.silent_deaths = 0
            work = slot.work
            session = slot.session
            if reply.call and reply.call != slot.call:
                return
            if work is not None and reply.call:
                self._finished.append((work, *self._result(slot, work, reply)))
                slot.work = None
            slot.ending, slot.worn = slot.ending and not reply.call, slot.worn or not reply.call
            if slot.session and reply.ended != Ended.ANSWERED:
                self._table.sessions.pop(slot.session, None)
                slot.session = 0
            if reply.last:
                if slot.work is not None:  # the work was sent when the session's process was dying
                    gone = (
                        self._failure("killed before it began")
                        if slot.killed
                        else session_gone(self.isolation)
                    )
                    self._finished.append((slot.work, gone, not slot.killed))
                    slot.work = None
                self._table.discard(slot)
            elif not (slot.session or slot.work or slot.ending or slot in slot.pool.idle):
                self._table.set_idle(slot)
        if session and (not reply.call or reply.ended != Ended.ANSWERED):
            self._on_death(session)

    def _result(self, slot: SlotHandle, work: Work, reply: Reply) -> tuple[ExecutionResult, bool]:
        """Pair (outcome of a work, True if the work was lost). Data of a snippet that cannot be
        read counts as the snippet's error: a snippet must not be able to cause an infrastructure
        failure.
        """
        try:
            return slot.result(work, reply, self.isolation)
        except (OSError, MemoryError):  # failure of this process
            raise
        except Exception as error:
            self._guard.caught(error)
            slot.worn = True
            why = f"The outcome could not be read: {type(error).__name__}.\n"
            return ExecutionResult(ToolStatus.ERROR, stderr=why, isolation=self.isolation), False

    def _on_slot_lost(self, slot: SlotHandle) -> None:
        """Process the loss of a slot. A snippet cannot cause the loss, so the slot's call may be
        run again.

        The cause may also have ended other slots of the pool. Live slots are kept: if a snippet
        found a way to end its slot, it must not cost other calls their warm slots.
        """
        with self._lock:
            self.slot_deaths += 1
            session = slot.session if slot.work is None else 0
            if slot.work is not None:
                self._finished.append((slot.work, self._failure("the slot died"), not slot.killed))
                slot.work = None
            self._table.discard(slot)
            self._table.discard_dead(slot.pool)
        if session:
            self._on_death(session)

    def _on_zygote_readable(self, descriptor: int, *, broken: bool = False) -> None:
        """Process the handshake or the end of a zygote. A zygote's slots end with it, and the end
        of each is processed separately.
        """
        for pool in self._table.pools:
            zygote = pool.zygote
            if (
                zygote is not None
                and zygote.control.fileno() == descriptor
                and (broken or zygote.handshake())
            ):
                self._poll.unregister(descriptor)
                with self._lock:
                    pool.lose_zygote()
                zygote.end()

    def _start_zygotes(self) -> None:
        """Start the zygotes that works wait for."""
        for pool in self._table.pools:
            with self._lock:
                works = pool.waiting
                pool.waiting = []
            if not works:
                continue
            if pool.is_given_up():
                failure = self._failure("the sandbox process keeps dying")
                self._finished += [(work, failure, False) for work in works]
                continue
            try:
                if pool.zygote is None:
                    zygote = ZygoteProcess(self._place_of_zygotes, pool.imports)
                    self._poll.register(zygote.control.fileno(), select.EPOLLIN)
                    with self._lock:
                        pool.zygote = zygote
            except Exception as error:
                failure = self._failure(f"the sandbox process could not be started: {error}")
                self._finished += [(work, failure, True) for work in works]
                raise
            for work in works:
                try:
                    with self._lock:
                        self._table.place(work)
                except Exception as error:
                    self._guard.caught(error)
                    failure = self._failure(f"the call could not be started: {error}")
                    self._finished.append((work, failure, True))

    def _notify_finished(self) -> None:
        while self._finished:
            with self._lock:
                finished = self._finished
                self._finished = []
            for work, result, lost in finished:
                self._guard.call(work.done, result, lost)

    def _end(self) -> None:
        """End all zygotes, and give every open work its result."""
        with self._lock:
            self._down = self._down or "the thread that serves its slots has ended"
            works = [slot.work for slot in self._by_line.values() if slot.work is not None]
            works += [work for pool in self._table.pools for work in pool.waiting]
            self._finished += [(work, self._failure(self._down), False) for work in works]
        self._guard.call(self._end_zygotes)
        self._notify_finished()
        self._poll.close()
        self._wake.close()

    def _end_zygotes(self) -> None:
        with self._lock:
            for slot in list(self._by_line.values()):
                self._table.discard(slot)
        for pool in self._table.pools:
            if pool.zygote is not None:
                with suppress(OSError):
                    self._poll.unregister(pool.zygote.control.fileno())
                pool.zygote.end()
                pool.zygote = None
        self._place_of_zygotes.remove()
