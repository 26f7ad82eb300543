"""What a node's code takes from the clock, from `uuid` and from `random`: recorded with the node's
task.

A task that runs again (on resume, in a replay) gets the same values in the same order, so that its
requests are the ones that are on record. Three kinds of values are kept apart, since code that
reads the clock once more must not get another id. Of `random` one seed is recorded: the task draws
from a generator of its own from then on.

Beyond what is on record a task draws anew: a resumed one adds to its record, a replayed one reads a
clock that goes on from the last recorded time.

How the functions of the standard library come here is the affair of `hrm_agent.draws`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from hrm_agent.trajectory.schema import GraphIdentity

__all__ = ["MOST_RECORDED", "OpenDraws", "TaskDraws", "is_answered", "while_answered"]

T = TypeVar("T")
MOST_RECORDED = 1000
"""So many values of a kind are recorded of one task: a loop that waits for a time reads the clock
without end.
"""


class TaskDraws(BaseModel):
    """What one attempt of one LangGraph task drew, in its order."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    identity: GraphIdentity
    """The task, and its attempt."""
    times: tuple[int, ...] = Field(default=(), max_length=MOST_RECORDED)
    """Readings of the clock: Unix times in nanoseconds."""
    uuids: tuple[str, ...] = Field(default=(), max_length=MOST_RECORDED)
    """Random bytes of `uuid.uuid4`, as hex digits."""
    seeds: tuple[int, ...] = Field(default=(), max_length=MOST_RECORDED)
    """Seeds of generators: of the task's own, and of each `random.Random()` that it made."""
    values: tuple[Any, ...] = Field(default=(), max_length=MOST_RECORDED)
    """What `hrm_agent.draws.drawn` was given, as JSON."""

    @property
    def key(self) -> tuple[str, int]:
        """Task and attempt: unique within a thread."""
        return self.identity.task_id, self.identity.attempt


class OpenDraws:
    """The draws of a task that is running: recorded ones first, then new ones. Thread-safe."""

    def __init__(
        self,
        identity: GraphIdentity,
        recorded: TaskDraws | None = None,
        on_new: Callable[[Callable[[], TaskDraws]], object] | None = None,
    ) -> None:
        """`on_new` is called when there is something to write, with what gives it. None: new draws
        are not kept.
        """
        self._identity, self._on_new = identity, on_new
        self._kept: dict[str, list[Any]] = {
            kind: list(getattr(recorded, kind)) if recorded is not None else []
            for kind in ("times", "uuids", "seeds", "values")
        }
        self._given = dict.fromkeys(self._kept, 0)
        self._waits = False
        """What is new has been announced, and was not fetched yet."""
        self._behind = 0
        """In a replay: how far the task's clock is behind this one, in nanoseconds."""
        self._random: random.Random | None = None
        self._lock = threading.RLock()

    def time(self, now: int) -> int:
        """A reading of the task's clock, in nanoseconds. `now`: what the machine's clock says."""
        told = self._next("times", lambda: now - self._behind)
        if self._on_new is None:
            self._behind = now - told
        return told

    def uuid_bytes(self, draw: Callable[[], bytes]) -> bytes:
        """The random bytes of a UUID."""
        return bytes.fromhex(self._next("uuids", lambda: draw().hex()))

    def seed(self, draw: Callable[[], int]) -> int:
        """The seed of a generator that was given none."""
        return int(self._next("seeds", draw))

    def value(self, draw: Callable[[], T]) -> T:
        """Anything that JSON can hold."""
        return self._next("values", draw)

    def generator(self, draw_seed: Callable[[], int]) -> random.Random:
        """What the functions of `random` draw from in this task."""
        with self._lock:
            if self._random is None:
                self._random = random.Random(self.seed(draw_seed))
            return self._random

    def reseed(self, *given: Any) -> None:
        """`random.seed(*given)` in this task."""
        with self._lock:
            self._random = random.Random()
            self._random.seed(*given)

    def record(self) -> TaskDraws:
        """All that was drawn so far."""
        with self._lock:
            self._waits = False
            return TaskDraws(
                identity=self._identity, **{kind: tuple(kept) for kind, kept in self._kept.items()}
            )

    def _next(self, kind: str, draw: Callable[[], Any]) -> Any:
        with self._lock:
            kept, number = self._kept[kind], self._given[kind]
            if number < len(kept):
                self._given[kind] += 1
                return kept[number]
        value = draw()
        if self._on_new is None or number >= MOST_RECORDED:
            return value
        with self._lock:
            kept.append(value)
            self._given[kind] += 1
            announce, self._waits = not self._waits, True
        if announce:
            self._on_new(self.record)
        return value


_answered: ContextVar[str] = ContextVar("hrm_agent_answered_task", default="")


@contextmanager
def while_answered(namespace: str) -> Generator[None]:
    """Inside the block the task `namespace` waits for a model or a tool, whose answer is recorded
    as a whole.

    What is drawn for it (a client's id for a request, the pause before a retry) is none of the
    task's draws: a replay has the answer and draws nothing.
    """
    token = _answered.set(namespace)
    try:
        yield
    finally:
        _answered.reset(token)


def is_answered(namespace: str) -> bool:
    """True inside such a block of this task; a graph that a tool runs has tasks of its own."""
    return _answered.get() == namespace
