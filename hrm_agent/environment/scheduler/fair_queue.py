"""Queue of an environment: selects the next call when a slot is free.

First a client is selected (`Submission.client`): the client that holds the fewest slots, and among
equals the client whose last turn was longest ago. Calls of this process itself belong to one
client. Next comes the highest priority among the client's waiting calls. Among the runs with calls
of this priority, a run is selected like the client. Within the run, calls go in order of arrival.

So a run with ten thousand waiting calls and a run with a single call get one slot each. Shares
count slots held, not calls started: calls of five seconds and calls of five milliseconds get equal
shares of the machine. A priority orders only the calls of its own client.

The thread that frees a slot takes the next call while it still holds the lock. So slots are handed
over without a race, and the thread cannot overtake a waiting call. Every operation costs O(1), or
O(log n) for the n waiting calls of one run.
"""

from __future__ import annotations

from bisect import insort
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

from hrm_agent.environment.base import Submission

__all__ = ["ArrivalQueue", "FairQueue", "Waiting"]

_KEPT_GONE = 32
"""Number of discarded calls that an `ArrivalQueue` may keep, in addition to one per waiting call,
before they are removed.
"""


class Waiting(Protocol):
    """Item of a queue."""

    submission: Submission
    """Submission with its client, run and priority."""
    sequence: int
    """Order of arrival, unique."""

    @property
    def waits(self) -> bool:
        """False once the item is to be skipped."""
        ...


_T = TypeVar("_T", bound=Waiting)


class ArrivalQueue(Generic[_T]):
    """Queue in order of arrival. A call that is queued again, because its first attempt was lost,
    gets its old place. Discarded calls are skipped.
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
        """Remove and return the first call. Raises IndexError if there is none."""
        while True:
            call = heappop(self._heap)[1]
            if call.waits:
                return call
            self._gone -= 1

    def discard(self, call: _T) -> None:
        """Discard `call`, which must be in the queue."""
        self._gone += 1
        if self._gone > _KEPT_GONE + len(self):
            self._heap = [entry for entry in self._heap if entry[1].waits]
            heapify(self._heap)
            self._gone = 0


class _ByShare:
    """Names by the number of slots that each holds. Among equal numbers, the name that waits
    longest comes first. The dict has at most one entry more than there are slots.
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
    """Runs of one client and priority that have waiting calls."""

    __slots__ = ("lines", "runs")

    def __init__(self) -> None:
        self.lines: dict[str, ArrivalQueue[_T]] = {}
        self.runs = _ByShare()


class FairQueue(Generic[_T]):
    """Fair queue of calls. Counts the slots that each client and run holds, from `pop` to
    `release`. Not thread-safe.
    """

    def __init__(self) -> None:
        self._lanes: dict[tuple[str, int], _PriorityLane[_T]] = {}
        """Lanes by client and priority."""
        self._order: dict[str, list[int]] = {}
        """Negated priorities of waiting calls by client, highest priority first."""
        self._clients = _ByShare()
        """Clients that have waiting calls."""
        self._client_shares: dict[str, int] = {}
        self._run_shares: dict[tuple[str, str], int] = {}
        """Slots held by (client, run), without zeros."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, call: _T) -> None:
        submission = call.submission
        client = submission.client
        run = submission.run
        priority = submission.priority
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
        """Remove and return the next call, and count its run as holding a slot. Raises IndexError
        if no call waits.
        """
        client = self._clients.next()
        lane = self._lanes[client, -self._order[client][0]]
        run = lane.runs.next()
        call = lane.lines[run].pop()
        self._left(call.submission)
        self._count(call.submission, 1)
        return call

    def discard(self, call: _T) -> None:
        """Discard `call`, which must be in the queue."""
        submission = call.submission
        self._lanes[submission.client, submission.priority].lines[submission.run].discard(call)
        self._left(submission)

    def release(self, submission: Submission) -> None:
        """Count one slot of the run of `submission` as free."""
        self._count(submission, -1)

    def _left(self, submission: Submission) -> None:
        client = submission.client
        run = submission.run
        priority = submission.priority
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
        client = submission.client
        run = submission.run
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
    """Share of `key` before `change` is added to it."""
    share = shares.get(key, 0)
    shares[key] = share + change
    if not shares[key]:
        del shares[key]
    return share
