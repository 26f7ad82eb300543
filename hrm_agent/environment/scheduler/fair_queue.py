"""The queue of an environment: who is next when a slot is free.

Of the clients (`Submission.client`; all calls of one process are one's) the one that holds the
fewest slots, and of several the one whose turn is longest ago. Of its calls higher priorities
first; among the runs of one priority, the one that holds the fewest slots likewise; within a run,
strictly in order of arrival. A run with ten thousand waiting calls and one with a single call so
get a slot each, and shares are of slots held, not of calls begun: calls of five seconds and of five
milliseconds come to the same share of the machine. A priority orders the calls of its own client
alone.

Whoever frees a slot takes the next call from here while it still holds the lock: slots are handed
over, never raced for, so no releaser overtakes a waiter. Every operation costs O(1), or O(log n) of
one run's waiting calls.
"""

from __future__ import annotations

from bisect import insort
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

from hrm_agent.environment.base import Submission

__all__ = ["ArrivalQueue", "FairQueue", "Waiting"]

_KEPT_GONE = 32
"""So many that left are kept in a line before it is looked at again, and as many as those that
wait.
"""


class Waiting(Protocol):
    """What stands in a queue."""

    submission: Submission
    """An item of the queue, with its client, run and priority."""
    sequence: int
    """Order of arrival; no two are equal."""

    @property
    def waits(self) -> bool:
        """False once it is to be skipped."""
        ...


_T = TypeVar("_T", bound=Waiting)


class ArrivalQueue(Generic[_T]):
    """In order of arrival, also for one that comes back (its first attempt was lost); those that
    left are skipped.
    """

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


class _ByShare:
    """Names by the slots that each holds, the one whose turn is longest ago first: at most one
    entry of shares more than there are slots.
    """

    __slots__ = ("_by_share",)

    def __init__(self) -> None:
        self._by_share: dict[int, dict[str, None]] = {}

    def next(self) -> str:
        """Name that is next in turn. Raises IndexError if the queue is empty."""
        if not self._by_share:
            raise IndexError("nothing waits")
        return next(iter(self._by_share[min(self._by_share)]))

    def enter(self, name: str, share: int) -> None:
        self._by_share.setdefault(share, {})[name] = None

    def leave(self, name: str, share: int) -> None:
        names = self._by_share[share]
        del names[name]
        if not names:
            del self._by_share[share]

    def move(self, name: str, share: int, change: int) -> None:
        self.leave(name, share)
        self.enter(name, share + change)


class _PriorityLane(Generic[_T]):
    """The runs of one client and priority that have calls waiting."""

    __slots__ = ("lines", "runs")

    def __init__(self) -> None:
        self.lines: dict[str, ArrivalQueue[_T]] = {}
        self.runs = _ByShare()


class FairQueue(Generic[_T]):
    """Not thread-safe. Counts the slots that each client and run holds, from `pop` to `release`."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[str, int], _PriorityLane[_T]] = {}
        """By client and priority."""
        self._order: dict[str, list[int]] = {}
        """Client -> priorities that have calls waiting, negated: the highest first."""
        self._clients = _ByShare()
        """Clients that have calls waiting."""
        self._client_shares: dict[str, int] = {}
        self._run_shares: dict[tuple[str, str], int] = {}
        """Slots held; of those who hold some."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, call: _T) -> None:
        submission = call.submission
        client, run, priority = submission.client, submission.run, submission.priority
        lane = self._lanes.get((client, priority))
        if lane is None:
            lane = self._lanes[client, priority] = _PriorityLane()
            if client not in self._order:
                self._order[client] = []
                self._clients.enter(client, self._client_shares.get(client, 0))
            insort(self._order[client], -priority)
        line = lane.lines.get(run)
        if line is None:
            line = lane.lines[run] = ArrivalQueue()
            lane.runs.enter(run, self._run_shares.get((client, run), 0))
        line.push(call)
        self._length += 1

    def pop(self) -> _T:
        """The call whose turn it is; a slot is counted as its run's. IndexError if none waits."""
        client = self._clients.next()
        lane = self._lanes[client, -self._order[client][0]]
        run = lane.runs.next()
        call = lane.lines[run].pop()
        self._left(call.submission)
        self._count(call.submission, 1)
        return call

    def discard(self, call: _T) -> None:
        """`call`, which stands here, waits no longer."""
        submission = call.submission
        self._lanes[submission.client, submission.priority].lines[submission.run].discard(call)
        self._left(submission)

    def release(self, submission: Submission) -> None:
        """A slot that the run of `submission` held is free."""
        self._count(submission, -1)

    def _left(self, submission: Submission) -> None:
        client, run, priority = submission.client, submission.run, submission.priority
        self._length -= 1
        lane = self._lanes[client, priority]
        if lane.lines[run]:
            return
        del lane.lines[run]
        lane.runs.leave(run, self._run_shares.get((client, run), 0))
        if lane.lines:
            return
        del self._lanes[client, priority]
        self._order[client].remove(-priority)
        if not self._order[client]:
            del self._order[client]
            self._clients.leave(client, self._client_shares.get(client, 0))

    def _count(self, submission: Submission, change: int) -> None:
        client, run = submission.client, submission.run
        order = self._order.get(client, ())
        lanes = [
            lane for priority in order if run in (lane := self._lanes[client, -priority]).lines
        ]
        share = _counted(self._run_shares, (client, run), change)
        for lane in lanes:
            lane.runs.move(run, share, change)
        share = _counted(self._client_shares, client, change)
        if order:
            self._clients.move(client, share, change)


_Key = TypeVar("_Key")


def _counted(shares: dict[_Key, int], key: _Key, change: int) -> int:
    """The share of `key` before `change`, which is counted."""
    share = shares.get(key, 0)
    shares[key] = share + change
    if not shares[key]:
        del shares[key]
    return share
