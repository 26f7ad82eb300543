"""Values that a node's code takes from the clock, `uuid` and `random`, recorded with the node's
task.

A task that runs again (on resume, in a replay) gets the same values in the same order, so that its
requests equal those on record. Each kind of value is kept apart, so that one more reading of the
clock does not shift the ids. For `random` one seed is recorded, from which the task's own
generator draws.

When the recorded values are used up, a task draws new ones. A resumed task adds them to its record.
A replayed task does not; its clock continues from the last recorded time.

`hrm_agent.draws` redirects the functions of the standard library to this module.
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
"""Maximum number of recorded values of a kind per task. It bounds the record of a loop that reads
the clock until a certain time.
"""


class TaskDraws(BaseModel):
    """Draws of one attempt of one LangGraph task, in order."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    identity: GraphIdentity
    """Task and its attempt."""
    times: tuple[int, ...] = Field(default=(), max_length=MOST_RECORDED)
    """Readings of the clock: Unix times in nanoseconds."""
    uuids: tuple[str, ...] = Field(default=(), max_length=MOST_RECORDED)
    """Random bytes of `uuid.uuid4`, as hex digits."""
    seeds: tuple[int, ...] = Field(default=(), max_length=MOST_RECORDED)
    """Seeds of generators: the task's own, and each `random.Random()` that it made."""
    values: tuple[Any, ...] = Field(default=(), max_length=MOST_RECORDED)
    """Values that `hrm_agent.draws.drawn` returned, as JSON."""

    @property
    def key(self) -> tuple[str, int]:
        """Task and attempt, unique within a thread."""
        return self.identity.task_id, self.identity.attempt


class OpenDraws:
    """Draws of a running task: recorded values first, then new ones. Thread-safe."""

    def __init__(
        self,
        identity: GraphIdentity,
        recorded: TaskDraws | None = None,
        on_new: Callable[[Callable[[], TaskDraws]], object] | None = None,
    ) -> None:
        """`on_new`: called with a function that returns the record, when there are new draws to
        write (None: new draws are not kept).
        """
        self._identity = identity
        self._on_new = on_new
        self._kept: dict[str, list[Any]] = {
            kind: list(getattr(recorded, kind)) if recorded is not None else []
            for kind in ("times", "uuids", "seeds", "values")
        }
        self._given = dict.fromkeys(self._kept, 0)
        self._waits = False
        """True after new draws were announced, until `record` fetches them."""
        self._behind = 0
        """Delay of the task's clock behind the machine's in a replay, in nanoseconds."""
        self._random: random.Random | None = None
        self._lock = threading.RLock()

    def time(self, now: int) -> int:
        """Reading of the task's clock, in nanoseconds. `now`: reading of the machine's clock."""
        told = self._next("times", lambda: now - self._behind)
        if self._on_new is None:
            self._behind = now - told
        return told

    def uuid_bytes(self, draw: Callable[[], bytes]) -> bytes:
        """Random bytes of a UUID."""
        return bytes.fromhex(self._next("uuids", lambda: draw().hex()))

    def seed(self, draw: Callable[[], int]) -> int:
        """Seed of a generator that the code made without a seed."""
        return int(self._next("seeds", draw))

    def value(self, draw: Callable[[], T]) -> T:
        """Drawn value. JSON must be able to hold it."""
        return self._next("values", draw)

    def generator(self, draw_seed: Callable[[], int]) -> random.Random:
        """Generator for the functions of `random` in this task."""
        with self._lock:
            if self._random is None:
                self._random = random.Random(self.seed(draw_seed))
            return self._random

    def reseed(self, *given: Any) -> None:
        """Apply `random.seed(*given)` to this task's generator."""
        with self._lock:
            self._random = random.Random()
            self._random.seed(*given)

    def record(self) -> TaskDraws:
        """All draws so far."""
        with self._lock:
            self._waits = False
            return TaskDraws(
                identity=self._identity, **{kind: tuple(kept) for kind, kept in self._kept.items()}
            )

    def _next(self, kind: str, draw: Callable[[], Any]) -> Any:
        with self._lock:
            kept = self._kept[kind]
            number = self._given[kind]
            if number < len(kept):
                self._given[kind] += 1
                return kept[number]
        value = draw()
        if self._on_new is None or number >= MOST_RECORDED:
            return value
        with self._lock:
            kept.append(value)
            self._given[kind] += 1
            announce = not self._waits
            self._waits = True
        if announce:
            self._on_new(self.record)
        return value


_answered: ContextVar[str] = ContextVar("hrm_agent_answered_task", default="")


@contextmanager
def while_answered(namespace: str) -> Generator[None]:
    """Mark the block as the time in which task `namespace` waits for a model or a tool.

    The answer is recorded as a whole. So draws inside the block (a client's request id, the pause
    before a retry) do not belong to the task: a replay has the answer and draws nothing.
    """
    token = _answered.set(namespace)
    try:
        yield
    finally:
        _answered.reset(token)


def is_answered(namespace: str) -> bool:
    """True inside a `while_answered` block of this task. The tasks of a graph that a tool runs have
    other namespaces, so that it is False for them.
    """
    return _answered.get() == namespace
