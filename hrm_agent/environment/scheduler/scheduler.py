"""Scheduler of sandbox calls: queue, sessions, ids, deadlines, one retry.

Threads and event loops are served alike: a caller is a function that is told the outcome (`enter`).
`submit` makes that a `concurrent.futures.Future`; `LocalEnvironment` an asyncio one, without a
second future and its locks in between. `fair_queue` says which call is next, `dispatch` how it is
run, `deferred_lock` how threads keep apart.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import count

from hrm_agent.environment.base import ExecutionResult, Submission
from hrm_agent.environment.scheduler.admission import Bounds, refusal
from hrm_agent.environment.scheduler.deadlines import Deadlines
from hrm_agent.environment.scheduler.deferred_lock import DeferredLock, cannot_run
from hrm_agent.environment.scheduler.dispatch import Dispatch
from hrm_agent.environment.scheduler.fair_queue import ArrivalQueue
from hrm_agent.environment.scheduler.metrics import Metrics
from hrm_agent.environment.scheduler.result_cache import ResultCache
from hrm_agent.environment.scheduler.sessions import ScheduledCall, Stage, Waiter
from hrm_agent.environment.scheduler.workers import Workers
from hrm_agent.errors import QueueFullError
from hrm_agent.trajectory import ToolStatus

__all__ = ["Scheduler"]


class Scheduler:
    """Thread-safe. Methods whose names begin with an underscore are called with the guard's lock
    held.
    """

    def __init__(
        self, workers: Workers, *, max_sessions: int = 64, bounds: Bounds | None = None
    ) -> None:
        """`max_sessions`: processes of sessions, at least one per slot; the one idle longest makes
        room.
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
        """Why no call is taken any more."""
        self._closed = False

    @property
    def is_ours(self) -> bool:
        """False in a fork of the process that made it, which can do nothing with it."""
        return self._guard.is_ours

    def submit(self, submission: Submission) -> Future[ExecutionResult]:
        """Run one call; cancelling the future kills it, unless another waits for it too.

        Raises QueueFullError where the queue is full, HrmError where the environment is closed or
        being shut down.
        """
        future: Future[ExecutionResult] = Future()
        waiter = partial(_answer, future)
        call = self.enter(submission, waiter)
        if call is not None:
            future.add_done_callback(
                lambda _: self.leave(call, waiter) if future.cancelled() else None
            )
        return future

    def enter(
        self, submission: Submission, waiter: Waiter, *, patient: bool = False
    ) -> ScheduledCall | None:
        """Take a call. `waiter` is told its outcome; None is returned if that is so already.

        `patient`: where the queue is full, stand in line for it, first in, first out. Else raises
        QueueFullError.
        """
        wrong = refusal(submission, self._bounds)
        return self._guard.change(self._enter, submission, waiter, wrong, patient)

    def leave(self, call: ScheduledCall, waiter: Waiter) -> None:
        """`waiter` does not wait any more; if nobody else does, the call is killed. Harmless once
        it has ended.
        """
        self._guard.change(self._leave, call, waiter)

    def fork_session(self, source: str, target: str, run: str = "") -> Future[None]:
        """Make `target` what `source` is when its running call has ended.

        Raises HrmError if there is no `source`, or one of the two belongs to another run.

        The copy is one of the cells: the first call of `target` runs them again in a process of its
        own. A fork of the process would share with it what lies outside of its memory: /tmp, open
        files, the processes that it started, all of it within the other's reach from then on.
        """
        copied: Future[None] = Future()
        copied.set_running_or_notify_cancel()
        self._guard.change(self._dispatch.fork_session, source, target, run, copied)
        return copied

    def end_session(self, name: str, run: str = "") -> None:
        """Forget a session; its open calls end with status `infrastructure`. An unknown one is no
        error.

        Raises HrmError if it belongs to another run.
        """
        self._guard.change(self._dispatch.end_session, name, run)

    def metrics(self) -> str:
        """Counts and times so far, in Prometheus' text format."""
        return self._guard.change(self._render)

    def not_responding(self, seconds: float) -> str:
        """Name the part that serves all calls and has not answered within `seconds`; empty if each
        has. Blocks.
        """
        if not self._guard.responds(seconds):
            return f"the queue's lock could not be had within {seconds:g} s"
        if not self._deadlines.responds(seconds):
            return f"the thread of the deadlines has not answered within {seconds:g} s"
        if not self._workers.responds(seconds):
            return f"the thread that serves the slots has not answered within {seconds:g} s"
        return ""

    def settle(self) -> None:
        """The workers have more slots than before: calls into them."""
        self._guard.change(lambda: None)

    def drain(self, seconds: float) -> bool:
        """Take no more calls, and wait for the open ones; False if some are still open after
        `seconds`.
        """
        self._guard.change(self._refuse, "it is being shut down")
        return self._guard.wait(lambda: not self._open, seconds)

    def close(self) -> None:
        """Kill whatever runs; open calls end with status `infrastructure`.
        Harmless a second time.
        """
        self._guard.change(self._close)
        self._deadlines.close()
        self._workers.close()

    def _settle(self) -> None:
        """Calls into free slots, and into the room that this makes in the queue."""
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
                f"The queue is full: {waiting}.", "Submit again when some have ended."
            )
        return self._take(submission, waiter, outside=outside)

    def _under_id(self, submission: Submission) -> ScheduledCall | ExecutionResult | None:
        """The open call with this id, or the outcome of one that has ended; None if it is new."""
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

    def _take(self, submission: Submission, waiter: Waiter, *, outside: bool) -> ScheduledCall:
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
        """The outcome of an open call: keep it, and tell whoever waits for it."""
        submission, call.stage = call.submission, Stage.ENDED
        self._open.discard(call)
        if submission.id is not None:
            del self._by_id[submission.run, submission.id]
            self._answers.keep(submission, result)
        if call.waiters:  # else it was cancelled, and counted as that
            self._metrics.count(result)
        for waiter in call.waiters:
            self._guard.later(waiter, result)
        call.waiters = []
        if self._down and not self._open:
            self._guard.wake()

    def _refuse(self, why: str) -> None:
        self._down = self._down or why

    def _close(self) -> None:
        self._down, self._closed = "it was closed", True
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


def _answer(future: Future[ExecutionResult], result: ExecutionResult) -> None:
    if future.set_running_or_notify_cancel():
        future.set_result(result)
