"""Scheduler of sandbox calls: queue, sessions, ids, deadlines, one retry.

`enter` takes a callback for the outcome, so that threads and event loops are served alike. `submit`
makes a `concurrent.futures.Future` of the callback. `ScheduledEnvironment` makes an asyncio future
of it directly, which saves the locks of a second future. `fair_queue` selects the next call,
`dispatch` runs it, `deferred_lock` synchronizes threads.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count

from hrm_agent.basics.async_bridge import call_in_thread
from hrm_agent.basics.bounded import BoundedMap
from hrm_agent.basics.guarded_loop import LoopGuard
from hrm_agent.environment.base import Environment, ExecutionResult, Submission
from hrm_agent.environment.scheduler.admission import Bounds, refusal
from hrm_agent.environment.scheduler.deferred_lock import DeferredLock, cannot_run
from hrm_agent.environment.scheduler.dispatch import Dispatch
from hrm_agent.environment.scheduler.fair_queue import ArrivalQueue
from hrm_agent.environment.scheduler.metrics import Metrics
from hrm_agent.environment.scheduler.sessions import ScheduledCall, Stage, Waiter
from hrm_agent.environment.scheduler.workers import Workers
from hrm_agent.errors import QueueFullError
from hrm_agent.trajectory import ToolStatus

__all__ = ["Deadlines", "ResultCache", "ScheduledEnvironment", "Scheduler", "notify"]

_Kept = tuple[bytes, ExecutionResult]
_ENTRY_BYTES = 1000
"""Approximate bytes of a kept outcome and its entry, without the outcome's texts."""


class ResultCache:
    """Cache of the latest outcomes by run and id, for calls that are submitted again. Not
    thread-safe.

    No run gets an outcome of another run. Outcomes with status `infrastructure` are not kept, since
    a caller that submits such a call again wants it to be run.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._kept = BoundedMap[tuple[str, str], _Kept](bounds.answers, _size, bounds.answers_bytes)

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, submission: Submission) -> tuple[bool, ExecutionResult] | None:
        """Pair (True if the id was given to the same call, outcome of that call), or None if the id
        is unknown.
        """
        found = self._kept.get((submission.run, submission.id or ""))
        return None if found is None else (found[0] == _fingerprint(submission), found[1])

    def keep(self, submission: Submission, result: ExecutionResult) -> None:
        if submission.id is None or result.status is ToolStatus.INFRASTRUCTURE:
            return
        key = (submission.run, submission.id)
        self._kept.pop(key, None)
        self._kept[key] = (_fingerprint(submission), result)


def _fingerprint(submission: Submission) -> bytes:
    session = (
        "" if submission.session is None else f"{len(submission.session)}:{submission.session}"
    )
    text = f"{session}\0{submission.code}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _size(kept: _Kept) -> int:
    result = kept[1]
    texts = (result.stdout, result.stderr, result.value or "", result.value_json or "")
    return _ENTRY_BYTES + sum(map(len, texts))


_FEW = 1024
_LONGEST_SLEEP = 3600.0
"""Longest sleep in seconds, since the timeout of a `Condition` is limited."""


class Deadlines:
    """Deadlines of waiting calls. A passed deadline is reported at once, even while no slot is
    free. Thread-safe.

    One thread, started with the first deadline, sleeps until the earliest deadline.
    """

    def __init__(self, passed: Callable[[ScheduledCall], None]) -> None:
        """Make an empty set. `passed`: called with each call whose deadline is over, whether the
        call has begun or not.
        """
        self._passed = passed
        self._changed = threading.Condition()
        self._guard = LoopGuard("environment-deadlines", self._wake)
        self._heap: list[tuple[float, int, ScheduledCall]] = []
        self._number = 0
        self._most = _FEW
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, when: float, call: ScheduledCall) -> None:
        """Add a deadline, `when` by the monotonic clock."""
        with self._changed:
            self._number += 1
            heappush(self._heap, (when, self._number, call))
            if len(self._heap) > self._most:
                # remove calls that have ended: most end long before their deadlines
                self._heap = [entry for entry in self._heap if entry[2].stage is not Stage.ENDED]
                heapify(self._heap)
                self._most = max(_FEW, 2 * len(self._heap))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, name="environment-deadlines", daemon=True
                )
                self._thread.start()
            elif self._heap[0][2] is call:
                self._changed.notify()

    def responds(self, seconds: float) -> bool:
        """True if the thread responds within `seconds`, was not started yet, or was closed."""
        return self._thread is None or self._closed or self._guard.responds(seconds)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._heap.clear()
            self._changed.notify()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _watch(self) -> None:
        while not self._closed:
            with self._guard:
                due: ScheduledCall | None = None
                with self._changed:
                    left = self._heap[0][0] - time.monotonic() if self._heap else _LONGEST_SLEEP
                    if left <= 0:
                        due = heappop(self._heap)[2]
                    elif not self._closed:
                        self._changed.wait(min(left, _LONGEST_SLEEP))
                if due is not None:
                    self._passed(due)


class Scheduler:
    """Scheduler of one environment. Thread-safe. Methods whose names begin with an underscore are
    called with the guard's lock held.
    """

    def __init__(
        self, workers: Workers, *, max_sessions: int = 64, bounds: Bounds | None = None
    ) -> None:
        """Make a scheduler. `max_sessions`: maximum number of sessions with a process, at least the
        number of slots. Beyond it, the session that was idle longest loses its process.
        """
        self._workers = workers
        self._bounds = bounds or Bounds()
        self._guard = DeferredLock(self._settle)
        self._metrics = Metrics()
        self._dispatch = Dispatch(workers, self._guard, self._metrics, max_sessions, self._bounds)
        self._dispatch.ended = self._end
        self._outside: ArrivalQueue[ScheduledCall] = ArrivalQueue()
        """Calls that wait for room in the queue."""
        self._open: set[ScheduledCall] = set()
        self._by_id: dict[tuple[str, str], ScheduledCall] = {}
        self._answers = ResultCache(self._bounds)
        self._deadlines = Deadlines(lambda call: self._guard.change(self._expire, call))
        self._sequence = count(1)
        self._down = ""
        """Reason why calls are refused (empty while they are accepted)."""
        self._closed = False

    @property
    def is_ours(self) -> bool:
        """False in a forked child of the process that made the scheduler: it is unusable there."""
        return self._guard.is_ours

    def submit(self, submission: Submission) -> Future[ExecutionResult]:
        """Run one call. Cancelling the future kills the call, unless another caller also waits for
        it.

        Raises QueueFullError if the queue is full, and HrmError if the environment is closed or
        shutting down.
        """
        future: Future[ExecutionResult] = Future()

        def waiter(result: ExecutionResult) -> None:
            if future.set_running_or_notify_cancel():
                future.set_result(result)

        call = self.enter(submission, waiter)
        if call is not None:
            future.add_done_callback(
                lambda _: self.leave(call, waiter) if future.cancelled() else None
            )
        return future

    def enter(
        self, submission: Submission, waiter: Waiter, *, patient: bool = False
    ) -> ScheduledCall | None:
        """Accept a call. `waiter` is called with its outcome. Returns None if the outcome is
        already known.

        `patient`: if the queue is full, the call waits for room, first in, first out. Without it,
        a full queue raises QueueFullError.
        """
        wrong = refusal(submission, self._bounds)
        return self._guard.change(self._enter, submission, waiter, wrong, patient)

    def leave(self, call: ScheduledCall, waiter: Waiter) -> None:
        """Remove `waiter` from a call, and kill the call if it has no other waiter. Harmless once
        the call has ended.
        """
        self._guard.change(self._leave, call, waiter)

    def fork_session(self, source: str, target: str, run: str = "") -> Future[None]:
        """Copy session `source` to `target` when its running call has ended.

        Raises HrmError if there is no `source`, or if one of the two belongs to another run.

        Only the cells are copied: the first call of `target` runs them again in a new process. The
        process is not forked, since a forked process would share with the original what is outside
        of its memory: /tmp, open files and child processes.
        """
        copied: Future[None] = Future()
        copied.set_running_or_notify_cancel()
        self._guard.change(self._dispatch.fork_session, source, target, run, copied)
        return copied

    def end_session(self, name: str, run: str = "") -> None:
        """End a session. Its open calls end with status `infrastructure`. An unknown session is
        ignored.

        Raises HrmError if the session belongs to another run.
        """
        self._guard.change(self._dispatch.end_session, name, run)

    def metrics(self) -> str:
        """Counts and times so far, in the text format of Prometheus."""
        return self._guard.change(self._render)

    def not_responding(self, seconds: float) -> str:
        """Description of the part that serves all calls and does not respond within `seconds`
        (empty if all respond). Blocks.
        """
        if not self._guard.responds(seconds):
            return f"the queue's lock could not be acquired within {seconds:g} s"
        if not self._deadlines.responds(seconds):
            return f"the thread of the deadlines has not answered within {seconds:g} s"
        if not self._workers.responds(seconds):
            return f"the thread that serves the slots has not answered within {seconds:g} s"
        return ""

    def settle(self) -> None:
        """Start waiting calls after the workers have got more slots."""
        self._guard.change(lambda: None)

    def drain(self, seconds: float) -> bool:
        """Accept no more calls, and wait for the open ones. False if calls are still open after
        `seconds`.
        """
        self._guard.change(self._refuse, "it is being shut down")
        return self._guard.wait(lambda: not self._open, seconds)

    def close(self) -> None:
        """Kill all running calls. Open calls end with status `infrastructure`. Harmless a second
        time.
        """
        self._guard.change(self._close)
        self._deadlines.close()
        self._workers.close()

    def _settle(self) -> None:
        """Start calls in free slots. Each makes room in the queue for a call that waits outside of
        it.
        """
        while not self._closed:
            self._dispatch.fill()
            if not self._outside or self._is_full():
                return
            self._dispatch.place(self._outside.pop())

    def _is_full(self) -> bool:
        return self._dispatch.waiting >= self._bounds.queue

    def _enter(
        self, submission: Submission, waiter: Waiter, wrong: str, patient: bool
    ) -> ScheduledCall | None:
        if self._down:
            raise cannot_run(self._down)
        found = (
            self._dispatch.result(ToolStatus.INVALID_CALL, wrong)
            if wrong
            else self._under_id(submission)
        )
        if isinstance(found, ScheduledCall):
            found.waiters.append(waiter)
            return found
        if found is not None:
            self._metrics.statuses[found.status] += bool(wrong)
            self._guard.later(waiter, found)
            return None
        outside = bool(self._outside) or self._is_full()
        if outside and not patient:
            waiting = f"{self._dispatch.waiting:,} calls are waiting"
            raise QueueFullError(
                f"The queue is full: {waiting}.", "Submit again when some of them have ended."
            )
        call = ScheduledCall(submission, next(self._sequence), time.monotonic(), waiters=[waiter])
        self._open.add(call)
        if submission.id is not None:
            self._by_id[submission.run, submission.id] = call
        if submission.deadline_seconds is not None:
            call.deadline = call.arrived + submission.deadline_seconds
            self._deadlines.add(call.deadline, call)
        if outside:
            call.queue = self._outside
            self._outside.push(call)
        else:
            self._dispatch.place(call)
        return call

    def _under_id(self, submission: Submission) -> ScheduledCall | ExecutionResult | None:
        """Open call with this id, or the outcome of an ended call with this id (None if the id is
        new). If the id was given to a different call, the outcome is `invalid_call`.
        """
        if submission.id is None:
            return None
        found: ScheduledCall | ExecutionResult | None = self._by_id.get(
            (submission.run, submission.id)
        )
        if found is not None:
            same = (found.submission.code, found.submission.session) == (
                submission.code,
                submission.session,
            )
        else:
            same, found = self._answers.find(submission) or (True, None)
        if not same:
            why = f"`id` {submission.id!r} was given to another call before."
            return self._dispatch.result(ToolStatus.INVALID_CALL, why)
        self._metrics.events["repeated"] += found is not None
        return found

    def _leave(self, call: ScheduledCall, waiter: Waiter) -> None:
        if waiter in call.waiters:
            call.waiters.remove(waiter)
            if not call.waiters:
                self._metrics.events["cancelled"] += 1
                self._drop(call, "The call was cancelled.")

    def _expire(self, call: ScheduledCall) -> None:
        if call.waits:
            seconds = call.submission.deadline_seconds
            self._drop(call, f"The call had not begun when its deadline of {seconds:g} s was over.")

    def _drop(self, call: ScheduledCall, why: str) -> None:
        result = self._dispatch.result(ToolStatus.INFRASTRUCTURE, why)
        queued = (call.begun or time.monotonic()) - call.arrived
        result = replace(result, queued_seconds=queued, attempt=max(1, call.attempt))
        if call.queue is self._outside:
            self._end(call, result)
            self._outside.discard(call)
        else:
            self._dispatch.drop(call, result)

    def _end(self, call: ScheduledCall, result: ExecutionResult) -> None:
        """End an open call: keep its outcome and pass it to the waiters."""
        submission = call.submission
        call.stage = Stage.ENDED
        self._open.discard(call)
        if submission.id is not None:
            del self._by_id[submission.run, submission.id]
            self._answers.keep(submission, result)
        if call.waiters:  # a call without waiters was cancelled, and counted as cancelled
            self._metrics.count(result)
        for waiter in call.waiters:
            self._guard.later(waiter, result)
        call.waiters = []
        if self._down and not self._open:
            self._guard.wake()

    def _refuse(self, why: str) -> None:
        self._down = self._down or why

    def _close(self) -> None:
        self._down = "it was closed"
        self._closed = True
        for call in list(self._open):
            self._drop(call, "The environment was closed.")

    def _render(self) -> str:
        sessions = self._dispatch.sessions
        gauges = {
            "slots": self._workers.slots,
            "slot_deaths": self._workers.slot_deaths,
            "worker_faults": self._workers.faults,
            "running": self._dispatch.busy,
            "waiting": self._dispatch.waiting,
            "outside": len(self._outside),
            "sessions_living": sessions.living,
            "sessions_known": sessions.known,
            "answers": len(self._answers),
        }
        return self._metrics.render(self._workers.isolation, gauges)


class ScheduledEnvironment(Environment):
    """`Environment` whose calls go through a scheduler. Thread-safe, and usable from any number of
    event loops.
    """

    _scheduler: Scheduler

    async def run(self, submission: Submission) -> ExecutionResult:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[ExecutionResult] = loop.create_future()
        waiter = partial(notify, loop, answer)
        call = self._scheduler.enter(submission, waiter, patient=True)
        try:
            return await answer
        finally:
            if call is not None and (answer.cancelled() or not answer.done()):
                self._scheduler.leave(call, waiter)

    async def fork_session(self, source: str, target: str, *, run: str = "") -> None:
        """Copy session `source` to `target` when its running call has ended. Only the cells are
        copied (see `Scheduler`).
        """
        await asyncio.wrap_future(self._scheduler.fork_session(source, target, run))

    async def end_session(self, session: str, *, run: str = "") -> None:
        """End a session. Its open calls end with status `infrastructure`."""
        self._scheduler.end_session(session, run)

    async def metrics(self) -> str:
        return self._scheduler.metrics()

    async def check_health(self, seconds: float = 5.0) -> str:
        asking = call_in_thread(partial(self._scheduler.not_responding, seconds))
        return await asyncio.wrap_future(asking)

    async def close(self) -> None:
        await asyncio.to_thread(self.shutdown)

    @abstractmethod
    def shutdown(self) -> None:
        """Close the environment without an event loop."""


def notify(
    loop: asyncio.AbstractEventLoop,
    answer: asyncio.Future[ExecutionResult],
    result: ExecutionResult,
) -> None:
    """Set an outcome in the loop of its future, from any thread."""

    def settle() -> None:
        if not answer.done():
            answer.set_result(result)

    with suppress(RuntimeError):  # the loop is closed: the caller is gone
        loop.call_soon_threadsafe(settle)
