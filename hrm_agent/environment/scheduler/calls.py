"""A call on its way through the scheduler, and the seeds that its snippet's random generators are given."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from hrm_agent.environment.base import ExecutionResult, Submission
from hrm_agent.environment.scheduler.sessions import Session, Visit
from hrm_agent.environment.scheduler.workers import Work

__all__ = ["Queue", "ScheduledCall", "SlotJob", "Stage", "Waiter", "seed_of"]

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
    """Its callers have their outcome, or left. Its slot is taken until the workers are done with it."""


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
    """Number of its latest work: a session may be rebuilt by many before the call's own code is run."""
    work: SlotJob | None = None
    """What the workers are at; None when they are not."""
    unwanted: bool = False
    """True if the work is to be killed as soon as it may be."""

    @property
    def waits(self) -> bool:
        return self.stage is Stage.WAITING


def seed_of(name: str | None) -> int:
    """The same for the same name, in every process; random without one.

    What follows a `~` does not count: a fork's session, which runs the cells of another one again, draws its numbers.
    """
    if name is None:
        return _random.getrandbits(_SEED_BITS)
    family = name.partition("~")[0]
    digest = hashlib.blake2b(family.encode("utf-8", "surrogatepass"), digest_size=_SEED_BITS // 8).digest()
    return int.from_bytes(digest, "little")
