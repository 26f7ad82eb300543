"""Sessions: calls that share their variables, their processes, and rebuilding of lost processes.

A session *is* its cells: the code of its calls that left the process alive. The process is only the
fast way to the cells' variables. It may be gone (killed by a call's time limit, or to make room for
another session), or may have run other cells than those in a call's history. Then the cells are run
again in a new process, and the new results are compared with the previous ones.

A cell that ends its process is left out of the next try, and the number of tries is limited. So the
call's own code always runs in the end, and the outcome describes the session's state. If a cell had
a different status, output or value, the session `differs`, and the outcome lists these cells. If a
cell ended the process and its result was different before, the session is `lost`.

The module also defines calls on their way through the scheduler, and the seeds of snippets' random
generators.
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
"""Maximum number of changed cells that are reported to the model."""
MAX_REBUILDS = 2
"""Number of times that a rebuild starts over without a cell that ended its process. After that, no
cell is run again.
"""
_DEADLY = (ToolStatus.TIMEOUT, ToolStatus.OUT_OF_MEMORY, ToolStatus.INFRASTRUCTURE)


@dataclass(slots=True, eq=False)
class Session:
    """Session of one name."""

    name: str
    """Name used in submissions."""
    run: str
    """Run that made the session. Other runs are denied access."""
    seed: int
    """Seed of each of the session's processes, so that a cell that draws random numbers has the
    same result when it is run again.
    """
    number: int = 0
    """Number of the session's live process (0 for none)."""
    cells: list[Cell] = field(default_factory=list[Cell])
    """Cells run so far, in order."""
    complete: bool = True
    """False if there were more cells than the bounds allow. No cells are kept then."""
    size: int = 0
    """Characters of the cells together."""
    head: ScheduledCall | None = None
    """First open call, which is in the queue or running. The others wait in `line`."""
    line: ArrivalQueue[ScheduledCall] = field(default_factory=ArrivalQueue["ScheduledCall"])
    """Other open calls, in order of arrival."""
    copies: list[tuple[str, Future[None]]] = field(default_factory=list[tuple[str, "Future[None]"]])
    """Copies to be made when the session's running call has ended: (name, future)."""
    ended: bool = False
    """True if the session was ended and only its running call is still open."""

    def assume(self, cells: Sequence[Cell]) -> None:
        self.cells = list(cells)
        self.complete = True
        self.size = sum(len(cell.code) for cell in cells)

    def append(self, cell: Cell, bounds: Bounds) -> None:
        if self.complete:
            self.cells.append(cell)
            self.size += len(cell.code)
        if len(self.cells) > bounds.history_cells or self.size > bounds.history_bytes:
            self.cells = []
            self.size = 0
            self.complete = False


@dataclass(slots=True, eq=False)
class Visit:
    """Use of a session's process by one call."""

    session: Session
    """Session whose process is used."""
    found: SessionState
    """State of the session that the call's outcome will report."""
    cells: list[Cell] = field(default_factory=list[Cell])
    """Cells to be run again before the call's own code."""
    fresh: bool = False
    """True if the next work has to start a new process."""
    index: int = 0
    """Index in `cells` of the next cell to be run again."""
    numbers: list[int] = field(default_factory=list[int])
    """Numbers of `cells` among the session's cells, from 1."""
    changed: set[int] = field(default_factory=set[int])
    """Numbers of the cells whose result was different from the previous one."""
    rebuilds: int = 0
    """Number of times that the rebuild has started over."""

    def __post_init__(self) -> None:
        self.numbers = list(range(1, len(self.cells) + 1))

    @property
    def rebuilding(self) -> bool:
        return self.index < len(self.cells)

    def replayed(self, result: ExecutionResult, *, alive: bool) -> None:
        """Process the result of a cell that was run again. If the cell ended the process, the other
        cells are to be run in a new process.
        """
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
        self.fresh = True
        self.index = 0
        if self.rebuilds > MAX_REBUILDS:
            self.found = SessionState.LOST
            self.cells = []


class SessionTable:
    """Sessions by name. The table starts and ends no processes: `unwanted` lists those to be ended.
    Not thread-safe.
    """

    def __init__(self, most_living: int, bounds: Bounds) -> None:
        self._most_living = most_living
        self._bounds = bounds
        self._numbers = count(1)
        self._named: dict[str, Session] = {}
        self._living: dict[int, Session] = {}
        self._idle: OrderedDict[int, Session] = OrderedDict()
        """Sessions with a process and without an open call, longest idle first."""
        self._queued: dict[int, Session] = {}
        """Sessions with a process and with calls that wait for a slot."""
        self._asleep = BoundedMap[str, Session](
            bounds.sessions, lambda session: session.size, bounds.sessions_bytes
        )
        """Sessions without a process and without an open call, longest idle first."""
        self.unwanted: list[int] = []
        """Numbers of processes to be ended. The caller ends them and empties the list."""

    @property
    def living(self) -> int:
        return len(self._living)

    @property
    def known(self) -> int:
        return len(self._named)

    def get(self, name: str) -> Session | None:
        return self._named.get(name)

    def enter(self, name: str, run: str, seed: int) -> Session:
        """Return the session `name` for a new call. A new session belongs to `run`."""
        session = self._named.get(name)
        if session is None:
            session = self._named[name] = Session(name, run, seed)
        if self._wake(session) and session.number:
            self._queued[session.number] = session
        return session

    def visit(self, session: Session, history: tuple[Cell, ...] | None) -> Visit:
        """Return a visit for a call that starts now. It uses the session's process if the process
        has run exactly the session's cells, else a new process in which they are run again.
        """
        self._queued.pop(session.number, None)
        if history is not None and not _same(session, history):
            self.kill(session)
            session.assume(history)
        if session.number:
            first = session.complete and not session.cells
            return Visit(session, SessionState.NEW if first else SessionState.KEPT)
        # Idle processes make room first. If there are none, the process of the session that was
        # queued last makes room, since its call probably has its turn last.
        while len(self._living) >= self._most_living and (self._idle or self._queued):
            self.kill(
                next(iter(self._idle.values()))
                if self._idle
                else next(reversed(self._queued.values()))
            )
        self.start(session)
        if not session.complete:
            return Visit(session, SessionState.LOST, fresh=True)
        found = SessionState.REPLAYED if session.cells else SessionState.NEW
        return Visit(session, found, list(session.cells), fresh=True)

    def start(self, session: Session) -> None:
        """Assign a new process to a session that has none."""
        session.number = next(self._numbers)
        self._living[session.number] = session

    def survived(self, session: Session, result: ExecutionResult) -> bool:
        """True if the session's process is alive after a cell with `result`."""
        return bool(session.number) and result.status not in _DEADLY

    def kill(self, session: Session) -> None:
        """Put the process of a session on the list of those to be ended."""
        if session.number:
            self.unwanted.append(session.number)
            self.died(session.number)

    def died(self, number: int) -> None:
        """Note the end of a process. An unknown number is ignored."""
        session = self._living.pop(number, None)
        if session is None:
            return
        session.number = 0
        self._queued.pop(number, None)
        if self._idle.pop(number, None) is not None:
            self._sleep(session)

    def ran(self, session: Session, code: str, result: ExecutionResult) -> None:
        """Note a call of the session that has ended and left its process alive."""
        session.append(Cell(code, result.digest), self._bounds)

    def park(self, session: Session) -> None:
        """Update the lists after a call of the session has ended."""
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
        """Copy `source` to `target`. Raises HrmError if `target` has open calls, or belongs to
        another run.
        """
        old = self._named.get(target)
        # another run may have made `target` while the call of `source` ran
        if old is not None and old.run != source.run:
            raise HrmError(
                f"The session {target!r} belongs to another run.",
                "Choose another name for the copy.",
            )
        if old is not None and old.head is not None:
            raise HrmError(
                f"The session {target!r} has open calls, so it cannot be replaced by a copy of"
                f" {source.name!r}."
            )
        self.end(target)
        session = self._named[target] = Session(
            target, source.run, source.seed, complete=source.complete
        )
        session.cells = list(source.cells)
        session.size = source.size
        self._sleep(session)

    def end(self, name: str) -> Session | None:
        """Forget a session and end its process. If it has open calls, the caller has to end
        them.
        """
        session = self._named.pop(name, None)
        if session is not None:
            session.ended = True
            self._wake(session)
            if session.head is None:
                self.kill(session)
        return session

    def _wake(self, session: Session) -> bool:
        """Remove a session from the idle ones. False if it was not idle."""
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
"""Callback for the outcome, called once, on any thread. It must be quick and must not raise."""
_SEED_BITS = 32
_random = random.Random()
"""Separate generator. A trainer may have seeded the global generator, and a draw from it would
change the trainer's numbers.
"""


class Stage(Enum):
    """Stage of a call, as seen by its callers."""

    WAITING = 1
    """The call is in the queue, or behind another call of its session."""
    RUNNING = 2
    """The call has a slot."""
    ENDED = 3
    """The callers have the outcome, or have left. The call keeps its slot until the workers are
    done.
    """


class Queue(Protocol):
    """Queue that a call waits in."""

    def discard(self, call: ScheduledCall) -> None: ...


@dataclass(slots=True, eq=False)
class SlotJob(Work):
    """Work that can be killed as soon as the workers have it."""

    handed: bool = False
    """True once the workers have accepted the work."""


@dataclass(slots=True, eq=False)
class ScheduledCall:
    """Submission with all its waiting callers."""

    submission: Submission
    """Submission to run."""
    sequence: int
    """Order of arrival, kept if the call is run again."""
    arrived: float
    """Time of arrival, by the monotonic clock."""
    deadline: float | None = None
    """Latest start, by the monotonic clock (None: the call waits without limit)."""
    waiters: list[Waiter] = field(default_factory=list[Waiter])
    """Callbacks for the outcome. There are several if the call's id was submitted again."""
    stage: Stage = Stage.WAITING
    """Stage of the call."""
    queue: Queue | None = None
    """Queue that the call waits in (None once the call has begun)."""
    session: Session | None = None
    """Session that the call belongs to (None outside sessions)."""
    visit: Visit | None = None
    """Use of the session's process (None until the call begins, and outside sessions)."""
    holds: bool = False
    """True while the call holds a slot."""
    attempt: int = 0
    """Number of the attempt, from 1, counted when the call gets a slot (0 before)."""
    begun: float = 0.0
    """Start of the call's own code, by the monotonic clock."""
    step: int = 0
    """Number of the latest work. A call may need many works, since each cell of a session that is
    rebuilt is a work.
    """
    work: SlotJob | None = None
    """Current work (None while the workers have none of this call)."""
    unwanted: bool = False
    """True if the work is to be killed as soon as possible."""

    @property
    def waits(self) -> bool:
        return self.stage is Stage.WAITING


def seed_of(name: str | None) -> int:
    """Seed for a session or call name, equal in every process (random if `name` is None).

    The part after a `~` is ignored, so that the session of a fork has the seed of the session whose
    cells it runs again.
    """
    if name is None:
        return _random.getrandbits(_SEED_BITS)
    family = name.partition("~")[0]
    digest = hashlib.blake2b(
        family.encode("utf-8", "surrogatepass"), digest_size=_SEED_BITS // 8
    ).digest()
    return int.from_bytes(digest, "little")
