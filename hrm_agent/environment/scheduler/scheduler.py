"""Scheduler of sandbox calls: queue, sessions, ids, deadlines, one retry.

A caller is a function that is called with the outcome (`enter`), so threads and event loops are
served alike. `submit` turns that into a `concurrent.futures.Future`. `LocalEnvironment` turns it
into an asyncio future, without a second future and its locks in between. `fair_queue` selects the
next call, `dispatch` runs it, `deferred_lock` synchronizes threads.
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
    """Scheduler of one environment. Thread-safe. Methods whose names begin with an underscore are
    called with the guard's lock held.
    """

    def __init__(
        self, workers: Workers, *, max_sessions: int = 64, bounds: Bounds | None = None
    ) -> None:
        """Make a scheduler. `max_sessions`: processes of sessions, at least one per slot. The
        process that was idle longest makes room for a new one.
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
        """False in a forked child of the process that made it, where it cannot be used."""
        return self._guard.is_ours

    def submit(self, submission: Submission) -> Future[ExecutionResult]:
        """Run one call. Cancelling the future kills it, unless another caller waits for it too.

        Raises QueueFullError if the queue is full, and HrmError if the environment is closed or
        shutting down.
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
        """Accept a call; `waiter` is called with its outcome. Returns None if the outcome is
        already known.

        `patient`: if the queue is full, wait for room, first in, first out. Otherwise raises
        QueueFullError.
        """
        wrong = refusal(submission, self._bounds)
        return self._guard.change(self._enter, submission, waiter, wrong, patient)

    def leave(self, call: ScheduledCall, waiter: Waiter) -> None:
        """Remove `waiter` from a call, and kill the call if it has no other. Harmless once it has
        ended.
        """
        self._guard.change(self._leave, call, waiter)

    def fork_session(self, source: str, target: str, run: str = "") -> Future[None]:
        """Copy session `source` to `target` when its running call has ended.

        Raises HrmError if there is no `source`, or one of the two belongs to another run.

        Only the cells are copied: the first call of `target` runs them again in a new process. A
        forked process would share state outside its memory with the original: /tmp, open files, and
        child processes, all within reach of both.
        """
        copied: Future[None] = Future()
        copied.set_running_or_notify_cancel()
        self._guard.change(self._dispatch.fork_session, source, target, run, copied)
        return copied

    def end_session(self, name: str, run: str = "") -> None:
        """End a session; its open calls end with status `infrastructure`. An unknown one is no
        error.

        Raises HrmError if it belongs to another run.
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
            return f"the queue's lock could not be had within {seconds:g} s"
        if not self._deadlines.responds(seconds):
            return f"the thread of the deadlines has not answered within {seconds:g} s"
        if not self._workers.responds(seconds):
            return f"the thread that serves the slots has not answered within {seconds:g} s"
        return ""

    def settle(self) -> None:
        """Start calls in new slots of the workers."""
        self._guard.change(lambda: None)

    def drain(self, seconds: float) -> bool:
        """Accept no more calls, and wait for the open ones; False if some are still open after
        `seconds`.
        """
        self._guard.change(self._refuse, "it is being shut down")
        return self._guard.wait(lambda: not self._open, seconds)

    def close(self) -> None:
        """Kill all running calls; open calls end with status `infrastructure`. Harmless a second
        time.
        """
        self._guard.change(self._close)
        self._deadlines.close()
        self._workers.close()

    def _settle(self) -> None:
        """Start calls in free slots, and move waiting calls into the room that this makes in the
        queue.
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
                f"The queue is full: {waiting}.", "Submit again when some have ended."
            )
        return self._take(submission, waiter, outside=outside)

    def _under_id(self, submission: Submission) -> ScheduledCall | ExecutionResult | None:
        """Open call with this id, or the outcome of an ended one (None if the id is new).
        `invalid_call` if another call had the id.
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
        """End an open call: keep its outcome and pass it to the waiters."""
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
