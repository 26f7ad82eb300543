"""Calls that share their variables: which process stands where, and how one that is gone is made
again.

A session *is* its cells, the codes of its calls whose process lived on. The process that ran them
is only the fast way to their variables: it may be gone (killed by a call's time limit, or to make
room for another session), or have gone on from here on another branch. Then the cells are run again
in a new process, and each must come to what it did before.

A cell that ends its process is left out of the next try, which is bounded; so the code always runs
on something, and the outcome says on what. Where a cell ended with another status, output or value,
the session `differs`, and the outcome says which cells did; where one was fatal that had not been
so in the same way, it is `lost`.

A call on its way through the scheduler, and the seeds that its snippet's random generators are
given.
"""

from __future__ import annotations

import hashlib
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Protocol

from hrm_agent.basics.bounded import BoundedMap
from hrm_agent.environment.base import Cell, ExecutionResult, SessionState, Submission
from hrm_agent.environment.scheduler.admission import Bounds
from hrm_agent.environment.scheduler.fair_queue import ArrivalQueue
from hrm_agent.environment.scheduler.workers import Work
from hrm_agent.errors import HrmError
from hrm_agent.trajectory import ToolStatus

__all__ = [
    "MOST_CHANGED",
    "Queue",
    "ScheduledCall",
    "Session",
    "SessionTable",
    "SlotJob",
    "Stage",
    "Visit",
    "Waiter",
    "seed_of",
]

MOST_CHANGED = 16
"""The model is told of so many changed cells at most."""
MAX_REBUILDS = 2
"""So often a rebuilding starts over without a cell that ended its process; after that, nothing is
run again.
"""
_DEADLY = (ToolStatus.TIMEOUT, ToolStatus.OUT_OF_MEMORY, ToolStatus.INFRASTRUCTURE)


@dataclass(slots=True, eq=False)
class Session:
    """One name."""

    name: str
    """As submissions name it."""
    run: str
    """The run that made it; to others it is denied."""
    seed: int
    """Of each of its processes, so that a cell that draws random numbers comes to the same
    again.
    """
    number: int = 0
    """Of its living process; 0: it has none."""
    cells: list[Cell] = field(default_factory=list[Cell])
    """What it has run so far, in order."""
    complete: bool = True
    """False if there were more cells than are remembered: then they are none at all."""
    size: int = 0
    """Characters of the cells."""
    head: ScheduledCall | None = None
    """Its first open call: in the queue, or running. The others wait in `line`."""
    line: ArrivalQueue[ScheduledCall] = field(default_factory=ArrivalQueue["ScheduledCall"])
    """Its other open calls, in order of arrival."""
    copies: list[tuple[str, Future[None]]] = field(default_factory=list[tuple[str, "Future[None]"]])
    """Names of sessions to be made from this one when its running call has ended."""
    ended: bool = False
    """True if it is forgotten already, and only its running call has still to end."""

    def assume(self, cells: Sequence[Cell]) -> None:
        self.cells, self.complete = list(cells), True
        self.size = sum(len(cell.code) for cell in cells)

    def append(self, cell: Cell, bounds: Bounds) -> None:
        if self.complete:
            self.cells.append(cell)
            self.size += len(cell.code)
        if len(self.cells) > bounds.history_cells or self.size > bounds.history_bytes:
            self.cells, self.size, self.complete = [], 0, False


@dataclass(slots=True, eq=False)
class Visit:
    """One call's use of its session's process."""

    session: Session
    """The session whose process is used."""
    found: SessionState
    """What the call will be told that it found of the session's earlier calls."""
    cells: list[Cell] = field(default_factory=list[Cell])
    """To be run again before the call's own code."""
    fresh: bool = False
    """True until a work is to make the process."""
    index: int = 0
    """Index in `cells` of the one to be run again now."""
    numbers: list[int] = field(default_factory=list[int])
    """Of each of `cells`, its number among the session's, from 1."""
    changed: set[int] = field(default_factory=set[int])
    """Numbers of the cells that gave another result."""
    rebuilds: int = 0
    """How often a rebuilding has started over."""

    def __post_init__(self) -> None:
        self.numbers = list(range(1, len(self.cells) + 1))

    @property
    def rebuilding(self) -> bool:
        return self.index < len(self.cells)

    def replayed(self, result: ExecutionResult, *, alive: bool) -> None:
        """A cell was run again. If that ended the process, the others are to be run in another."""
        cell = self.cells[self.index]
        as_before = cell.digest == result.digest
        if not as_before and cell.digest:
            self.changed.add(self.numbers[self.index])
            self.found = (
                SessionState.LOST if self.found is SessionState.LOST else SessionState.DIFFERS
            )
        if not as_before and not alive:
            self.found = SessionState.LOST
        if alive:
            self.index += 1
            return
        self.rebuilds += 1
        del self.cells[self.index], self.numbers[self.index]
        self.fresh, self.index = True, 0
        if self.rebuilds > MAX_REBUILDS:
            self.found, self.cells = SessionState.LOST, []


class SessionTable:
    """Not thread-safe. Starts and ends no process itself: it says which are to be ended."""

    def __init__(self, most_living: int, bounds: Bounds) -> None:
        self._most_living = most_living
        self._bounds = bounds
        self._numbers = count(1)
        self._named: dict[str, Session] = {}
        self._living: dict[int, Session] = {}
        self._idle: OrderedDict[int, Session] = OrderedDict()
        """Living, without an open call; the one that has been so for longest first."""
        self._queued: dict[int, Session] = {}
        """Living, with calls that wait for a slot."""
        self._asleep = BoundedMap[str, Session](
            bounds.sessions, lambda session: session.size, bounds.sessions_bytes
        )
        """Without a process and without an open call;
        the one that has been so for longest first.
        """
        self.unwanted: list[int] = []
        """Numbers of processes that are to be ended; the caller takes them."""

    @property
    def living(self) -> int:
        return len(self._living)

    @property
    def known(self) -> int:
        return len(self._named)

    def get(self, name: str) -> Session | None:
        return self._named.get(name)

    def enter(self, name: str, run: str, seed: int) -> Session:
        """The session of that name for a call that has come in; a new one belongs to `run`."""
        session = self._named.get(name)
        if session is None:
            session = self._named[name] = Session(name, run, seed)
        if self._wake(session) and session.number:
            self._queued[session.number] = session
        return session

    def visit(self, session: Session, history: tuple[Cell, ...] | None) -> Visit:
        """The session's process for a call that begins now: the one that stands there, else one to
        be rebuilt.
        """
        self._queued.pop(session.number, None)
        if history is not None and not _same(session, history):
            self.kill(session)
            session.assume(history)
        if session.number:
            first = session.complete and not session.cells
            return Visit(session, SessionState.NEW if first else SessionState.KEPT)
        self._make_room()
        self.start(session)
        if not session.complete:
            return Visit(session, SessionState.LOST, fresh=True)
        found = SessionState.REPLAYED if session.cells else SessionState.NEW
        return Visit(session, found, list(session.cells), fresh=True)

    def start(self, session: Session) -> None:
        """A new process for a session that has none."""
        session.number = next(self._numbers)
        self._living[session.number] = session

    def survived(self, session: Session, result: ExecutionResult) -> bool:
        """True if the session's process lives after a cell that came to `result`."""
        return bool(session.number) and result.status not in _DEADLY

    def kill(self, session: Session) -> None:
        """It has no process from here on."""
        if session.number:
            self.unwanted.append(session.number)
            self.died(session.number)

    def died(self, number: int) -> None:
        """The process is gone; an unknown one is no error."""
        session = self._living.pop(number, None)
        if session is None:
            return
        session.number = 0
        self._queued.pop(number, None)
        if self._idle.pop(number, None) is not None:
            self._sleep(session)

    def ran(self, session: Session, code: str, result: ExecutionResult) -> None:
        """A call of the session has ended, and its process lives on."""
        session.append(Cell(code, result.digest), self._bounds)

    def park(self, session: Session) -> None:
        """No call of it runs any more."""
        if session.ended:
            self.kill(session)
        elif session.head is not None:
            if session.number:
                self._queued[session.number] = session
        elif session.number:
            self._idle[session.number] = session
        else:
            self._sleep(session)

    def copy(self, source: Session, target: str) -> None:
        """Make `target` what `source` is. Raises HrmError if `target` has open calls, or belongs to
        another run.
        """
        old = self._named.get(target)
        if old is not None and old.run != source.run:  # it came while the source's call ran
            raise HrmError(
                f"The session {target!r} belongs to another run.",
                "Choose another name for the copy.",
            )
        if old is not None and old.head is not None:
            raise HrmError(
                f"The session {target!r} has calls under way: it cannot become a copy of"
                f" {source.name!r}."
            )
        self.end(target)
        session = self._named[target] = Session(
            target, source.run, source.seed, complete=source.complete
        )
        session.cells, session.size = list(source.cells), source.size
        self._sleep(session)

    def end(self, name: str) -> Session | None:
        """Forget a session, and its process; one that has open calls is the caller's to see to."""
        session = self._named.pop(name, None)
        if session is not None:
            session.ended = True
            self._wake(session)
            if session.head is None:
                self.kill(session)
        return session

    def _make_room(self) -> None:
        """Of those that have calls waiting the one that came last: its turn is likely to be the
        last.
        """
        while len(self._living) >= self._most_living and (self._idle or self._queued):
            self.kill(
                next(iter(self._idle.values()))
                if self._idle
                else next(reversed(self._queued.values()))
            )

    def _wake(self, session: Session) -> bool:
        """False if it was awake."""
        return (
            self._asleep.pop(session.name, None) is not None
            or self._idle.pop(session.number, None) is not None
        )

    def _sleep(self, session: Session) -> None:
        for forgotten in self._asleep.put(session.name, session):
            del self._named[forgotten.name]


def _same(session: Session, history: tuple[Cell, ...]) -> bool:
    """True if the session has run exactly these cells."""
    return (
        session.complete
        and len(session.cells) == len(history)
        and all(
            ours.code == theirs.code
            and (ours.digest == theirs.digest or not (ours.digest and theirs.digest))
            for ours, theirs in zip(session.cells, history, strict=True)
        )
    )


Waiter = Callable[[ExecutionResult], None]
"""Is told the outcome, once, on whichever thread it comes. Must be quick, and must not raise."""
_SEED_BITS = 32
_random = random.Random()
"""Of its own: the process's generator may be a trainer's, seeded, and is not to be drawn from."""


class Stage(Enum):
    """Where a call stands, as its callers see it."""

    WAITING = 1
    """In the queue, or behind another call of its session."""
    RUNNING = 2
    """It has a slot."""
    ENDED = 3
    """Its callers have their outcome, or left. Its slot is taken until the workers are done with
    it.
    """


class Queue(Protocol):
    """Where a call waits."""

    def discard(self, call: ScheduledCall) -> None: ...


@dataclass(slots=True, eq=False)
class SlotJob(Work):
    """A work, and whether it may be killed."""

    handed: bool = False
    """True once the workers have taken it."""


@dataclass(slots=True, eq=False)
class ScheduledCall:
    """One submission, and all that wait for it."""

    submission: Submission
    """What is to be run."""
    sequence: int
    """Order of arrival; a call that is run again keeps it."""
    arrived: float
    """When it came in, by the monotonic clock."""
    deadline: float | None = None
    """By when it has to have begun, by the monotonic clock; None waits as long as it takes."""
    waiters: list[Waiter] = field(default_factory=list[Waiter])
    """Called with the outcome; several where one id was submitted again."""
    stage: Stage = Stage.WAITING
    """Where it stands."""
    queue: Queue | None = None
    """Where it waits; None once it has begun."""
    session: Session | None = None
    """The session that it belongs to; None outside sessions."""
    visit: Visit | None = None
    """Its use of the session's process; None until it begins, and outside sessions."""
    holds: bool = False
    """True while a slot is taken by it."""
    attempt: int = 0
    """From 1, counted when a slot is taken."""
    begun: float = 0.0
    """When its own code was started, by the monotonic clock."""
    step: int = 0
    """Number of its latest work: a session may be rebuilt by many before the call's own code is
    run.
    """
    work: SlotJob | None = None
    """What the workers are at; None when they are not."""
    unwanted: bool = False
    """True if the work is to be killed as soon as it may be."""

    @property
    def waits(self) -> bool:
        return self.stage is Stage.WAITING


def seed_of(name: str | None) -> int:
    """The same for the same name, in every process; random without one.

    What follows a `~` does not count: a fork's session, which runs the cells of another one again,
    draws its numbers.
    """
    if name is None:
        return _random.getrandbits(_SEED_BITS)
    family = name.partition("~")[0]
    digest = hashlib.blake2b(
        family.encode("utf-8", "surrogatepass"), digest_size=_SEED_BITS // 8
    ).digest()
    return int.from_bytes(digest, "little")
