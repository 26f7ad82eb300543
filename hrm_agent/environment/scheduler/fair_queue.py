"""The queue of an environment: who is next when a slot is free.

Higher priorities first; among the runs of one priority, the one that holds the fewest slots, and of several the one
whose turn is longest ago; within a run, strictly in order of arrival. A run with ten thousand waiting calls and one
with a single call so get a slot each, and shares are of slots held, not of calls begun: calls of five seconds and of
five milliseconds come to the same share of the machine.

Whoever frees a slot takes the next call from here while it still holds the lock: slots are handed over, never raced
for, so no releaser overtakes a waiter. Every operation costs O(1), or O(log n) of one run's waiting calls.
"""

from __future__ import annotations

from bisect import insort
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

from hrm_agent.environment.base import Submission

__all__ = ["ArrivalQueue", "FairQueue", "Waiting"]

_KEPT_GONE = 32
"""So many that left are kept in a line before it is looked at again, and as many as those that wait."""


class Waiting(Protocol):
    """What stands in a queue."""

    submission: Submission
    """What is to be run: says its run and priority."""
    sequence: int
    """Order of arrival; no two are equal."""

    @property
    def waits(self) -> bool:
        """False once it is to be skipped."""
        ...


_T = TypeVar("_T", bound=Waiting)


class ArrivalQueue(Generic[_T]):
    """In order of arrival, also for one that comes back (its first attempt was lost); those that left are skipped."""

    __slots__ = ("_gone", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, _T]] = []
        self._gone = 0

    def __len__(self) -> int:
        return len(self._heap) - self._gone

    def push(self, call: _T) -> None:
        heappush(self._heap, (call.sequence, call))

    def pop(self) -> _T:
        """The one that came first. IndexError if there is none."""
        while True:
            call = heappop(self._heap)[1]
            if call.waits:
                return call
            self._gone -= 1

    def discard(self, call: _T) -> None:
        """`call`, which stands here, waits no longer."""
        self._gone += 1
        if self._gone > _KEPT_GONE + len(self):
            self._heap = [entry for entry in self._heap if entry[1].waits]
            heapify(self._heap)
            self._gone = 0


class _PriorityLane(Generic[_T]):
    """The runs of one priority that have calls waiting."""

    def __init__(self) -> None:
        self.lines: dict[str, ArrivalQueue[_T]] = {}
        self._by_share: dict[int, dict[str, None]] = {}
        """Slots held -> runs, the one whose turn is longest ago first. At most one entry more than there are slots."""

    def next_run(self) -> str:
        return next(iter(self._by_share[min(self._by_share)]))

    def enter(self, run: str, share: int) -> None:
        self._by_share.setdefault(share, {})[run] = None

    def leave(self, run: str, share: int) -> None:
        runs = self._by_share[share]
        del runs[run]
        if not runs:
            del self._by_share[share]


class FairQueue(Generic[_T]):
    """Not thread-safe. Counts the slots that each run holds, from `pop` to `release`."""

    def __init__(self) -> None:
        self._lanes: dict[int, _PriorityLane[_T]] = {}
        self._order: list[int] = []
        """Priorities that have calls waiting, negated: the highest first."""
        self._shares: dict[str, int] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, call: _T) -> None:
        priority, run = call.submission.priority, call.submission.run
        lane = self._lanes.get(priority)
        if lane is None:
            lane = self._lanes[priority] = _PriorityLane()
            insort(self._order, -priority)
        line = lane.lines.get(run)
        if line is None:
            line = lane.lines[run] = ArrivalQueue()
            lane.enter(run, self._shares.get(run, 0))
        line.push(call)
        self._length += 1

    def pop(self) -> _T:
        """The call whose turn it is; a slot is counted as its run's. IndexError if none waits."""
        lane = self._lanes[-self._order[0]]
        run = lane.next_run()
        call = lane.lines[run].pop()
        self._left(call)
        self._count(run, 1)
        return call

    def discard(self, call: _T) -> None:
        """`call`, which stands here, waits no longer."""
        self._lanes[call.submission.priority].lines[call.submission.run].discard(call)
        self._left(call)

    def release(self, run: str) -> None:
        """A slot that `run` held is free."""
        self._count(run, -1)

    def _left(self, call: _T) -> None:
        priority, run = call.submission.priority, call.submission.run
        self._length -= 1
        lane = self._lanes[priority]
        if lane.lines[run]:
            return
        del lane.lines[run]
        lane.leave(run, self._shares.get(run, 0))
        if not lane.lines:
            del self._lanes[priority]
            self._order.remove(-priority)

    def _count(self, run: str, change: int) -> None:
        share = self._shares.get(run, 0)
        for lane in self._lanes.values():
            if run in lane.lines:
                lane.leave(run, share)
                lane.enter(run, share + change)
        self._shares[run] = share + change
        if not self._shares[run]:
            del self._shares[run]
