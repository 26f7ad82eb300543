"""Dispatch of calls from the queue through the workers to their outcomes: slots, second attempts,
rebuilt sessions.

The thread that frees a slot also starts the next call in it. There is no scheduling thread. A slot
stays taken until the workers are done with its work, even if the callers have left.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from hrm_agent.environment.base import ExecutionResult
from hrm_agent.environment.scheduler.admission import Bounds
from hrm_agent.environment.scheduler.deferred_lock import DeferredLock
from hrm_agent.environment.scheduler.fair_queue import FairQueue
from hrm_agent.environment.scheduler.metrics import Metrics
from hrm_agent.environment.scheduler.sessions import (
    MOST_CHANGED,
    ScheduledCall,
    Session,
    SessionTable,
    SlotJob,
    Stage,
    seed_of,
)
from hrm_agent.environment.scheduler.workers import Workers
from hrm_agent.errors import HrmError
from hrm_agent.trajectory import ToolStatus

__all__ = ["Dispatch"]

MAX_ATTEMPTS = 2
"""Maximum number of attempts of a call. A call that the infrastructure lost is run once more. A
call of a session is only run again if its code had not begun to act.
"""


class Dispatch:
    """Dispatcher of calls. Its methods are called with the guard's lock held, unless their
    docstrings say otherwise.
    """

    def __init__(
        self,
        workers: Workers,
        guard: DeferredLock,
        metrics: Metrics,
        max_sessions: int,
        bounds: Bounds,
    ) -> None:
        self._workers = workers
        self._guard = guard
        self._metrics = metrics
        self._queue: FairQueue[ScheduledCall] = FairQueue()
        self.sessions = SessionTable(max(max_sessions, workers.slots), bounds)
        self.waiting = 0
        """Number of calls in the queue, or behind an earlier call of their session."""
        self.busy = 0
        """Number of slots in use."""
        self.ended: Callable[[ScheduledCall, ExecutionResult], None] = lambda call, result: None
        """Callback for each call that gets its outcome from this object."""
        workers.on_session_death(lambda number: guard.change(self.sessions.died, number))

    def result(self, status: ToolStatus, why: str) -> ExecutionResult:
        """Outcome made by the scheduler instead of the workers. The lock need not be held."""
        return ExecutionResult(status, stderr=why, isolation=self._workers.isolation)

    def place(self, call: ScheduledCall) -> None:
        """Put a call into the queue, or behind the open calls of its session."""
        name = call.submission.session
        run = call.submission.run
        if name is not None:
            known = self.sessions.get(name)
            if known is not None and known.run != run:
                self.ended(call, self.result(ToolStatus.DENIED, _of_another_run(name).message))
                return
            call.session = self.sessions.enter(name, run, seed_of(name))
            call.session.head = call.session.head or call
        self.waiting += 1
        if call.session is None or call.session.head is call:
            self._line_up(call)
        else:
            call.queue = call.session.line
            call.session.line.push(call)

    def fill(self) -> None:
        """Start calls in free slots."""
        while self._queue and self.busy < self._workers.slots:
            call = self._queue.pop()
            try:
                self.waiting -= 1
                self.busy += 1
                call.queue = None
                call.stage = Stage.RUNNING
                call.holds = True
                call.attempt += 1
                if call.session is not None:
                    call.visit = self.sessions.visit(call.session, call.submission.history)
                self._step(call)
            except Exception as error:
                self._surprised(call, error)
        self._end_processes()

    def _surprised(self, call: ScheduledCall, error: Exception) -> None:
        """Turn an error raised for `call` into its outcome, so that no slot is lost."""
        self._guard.caught(error)
        call.work = None
        if call.stage is not Stage.ENDED:
            why = f"The call could not be scheduled: {type(error).__name__}: {error}"
            self.ended(call, self.result(ToolStatus.INFRASTRUCTURE, why))
        if call.session is not None:
            self.sessions.kill(call.session)
        if call.holds:
            self._vacate(call)

    def drop(self, call: ScheduledCall, result: ExecutionResult) -> None:
        """End a call that was placed: take it out of the queue, or kill it."""
        queue = call.queue
        call.queue = None
        self.ended(call, result)
        if queue is None:
            self._kill(call)
            return
        queue.discard(call)
        self.waiting -= 1
        if call.session is not None and call.session.head is call:
            self._next_of(call.session)

    def fork_session(self, source: str, target: str, run: str, copied: Future[None]) -> None:
        """Copy a session. `copied` is resolved when `target` exists. Raises HrmError if there is no
        `source`, or if one of the two sessions belongs to another run.
        """
        session = self.sessions.get(source)
        if session is None:
            raise HrmError(f"There is no session {source!r} to fork.", "Run a call in it first.")
        self._refuse_others(source, run)
        self._refuse_others(target, run)
        session.copies.append((target, copied))
        if session.head is None or session.head.waits:
            self._copy(session)

    def end_session(self, name: str, run: str) -> None:
        """End a session. Its open calls end with status `infrastructure`. Raises HrmError if the
        session belongs to another run.
        """
        self._refuse_others(name, run)
        session = self.sessions.end(name)
        if session is None:
            return
        ended = self.result(ToolStatus.INFRASTRUCTURE, "The session was ended.")
        while session.line:
            behind = session.line.pop()
            behind.queue = None
            self.waiting -= 1
            self.ended(behind, ended)
        if session.head is not None and session.head.stage is not Stage.ENDED:
            self.drop(session.head, ended)

    def _refuse_others(self, name: str, run: str) -> None:
        known = self.sessions.get(name)
        if known is not None and known.run != run:
            raise _of_another_run(name)

    def _line_up(self, call: ScheduledCall) -> None:
        call.queue = self._queue
        self._queue.push(call)

    def _step(self, call: ScheduledCall) -> None:
        """Start the next work of a call: the call's own code, or before that, while its session is
        being rebuilt, a cell of the session.
        """
        self._end_processes()
        visit = call.visit
        session = call.session
        submission = call.submission
        code = submission.code
        if visit is not None and visit.rebuilding:
            code = visit.cells[visit.index].code
            self._metrics.events["rebuilt_cells"] += 1
        else:
            call.begun = time.monotonic()
        call.step += 1
        work = SlotJob(code, submission.limits, partial(self._done, call, call.step))
        work.seed = session.seed if session is not None else seed_of(submission.id)
        if session is not None and visit is not None:
            work.session = session.number
            work.fresh = visit.fresh
            visit.fresh = False
        work.again = call.attempt > 1
        call.work = work
        self._guard.later(self._start, call, work)

    def _start(self, call: ScheduledCall, work: SlotJob) -> None:
        """Hand a work to the workers. The lock must not be held."""
        try:
            self._workers.start(work)
        # for any error, the call has to get an outcome and its slot has to become free
        except Exception as error:
            work.done(
                self.result(ToolStatus.INFRASTRUCTURE, f"The call could not be started: {error}"),
                True,
            )
        else:
            # `handed` is set before `unwanted` is read, and `_kill` uses the opposite order: so at
            # least one of the two sees that the work has to be killed
            work.handed = True
            if call.unwanted:
                self._guard.change(self._kill, call)

    def _kill(self, call: ScheduledCall) -> None:
        call.unwanted = True
        if call.work is not None and call.work.handed:
            self._guard.later(self._workers.kill, call.work)

    def _done(self, call: ScheduledCall, step: int, result: ExecutionResult, lost: bool) -> None:
        """Handle the end of a work. The lock must not be held."""
        self._guard.change(self._stepped, call, step, result, lost)

    def _stepped(self, call: ScheduledCall, step: int, result: ExecutionResult, lost: bool) -> None:
        """Process the result of a call's work."""
        if call.work is None or call.step != step:  # reported twice
            return
        call.work = None
        try:
            self._go_on(call, result, lost=lost)
        except Exception as error:
            self._surprised(call, error)

    def _go_on(self, call: ScheduledCall, result: ExecutionResult, *, lost: bool) -> None:
        alive = False  # True if the session's process lives and has its variables
        if call.session is not None:
            alive = self.sessions.survived(call.session, result) and call.stage is not Stage.ENDED
            if not alive:
                self.sessions.kill(call.session)
        visit = call.visit
        rebuilding = visit is not None and visit.rebuilding
        if call.stage is Stage.ENDED:
            self._vacate(call)
        elif lost or result.status is ToolStatus.INFRASTRUCTURE:
            unharmed = call.session is None or lost or rebuilding
            in_time = call.deadline is None or time.monotonic() < call.deadline
            if unharmed and in_time and call.attempt < MAX_ATTEMPTS:
                self._metrics.events["retries"] += 1
                self._free_slot(call)
                call.stage = Stage.WAITING
                call.visit = None
                self.waiting += 1
                self._line_up(call)
            else:
                self._finish(call, result, alive=False)
        elif visit is not None and rebuilding:
            visit.replayed(result, alive=alive)
            if not alive:
                self.sessions.start(visit.session)
            self._step(call)
        else:
            self._finish(call, result, alive=alive)

    def _finish(self, call: ScheduledCall, result: ExecutionResult, *, alive: bool) -> None:
        if alive and call.session is not None:
            self.sessions.ran(call.session, call.submission.code, result)
        visit = call.visit
        queued = (call.begun or time.monotonic()) - call.arrived
        result = replace(
            result,
            queued_seconds=queued,
            attempt=call.attempt,
            session=visit.found if visit else None,
        )
        changed = sorted(visit.changed)[:MOST_CHANGED] if visit is not None else ()
        self.ended(call, replace(result, changed_cells=tuple(changed)) if changed else result)
        self._vacate(call)

    def _vacate(self, call: ScheduledCall) -> None:
        self._free_slot(call)
        if call.session is not None:
            self._next_of(call.session)

    def _free_slot(self, call: ScheduledCall) -> None:
        self.busy -= 1
        call.holds = False
        self._queue.release(call.submission)

    def _next_of(self, session: Session) -> None:
        """Put the next call of a session into the queue, after the session's first call has
        ended.
        """
        self._copy(session)
        session.head = session.line.pop() if session.line else None
        if session.head is not None:
            self._line_up(session.head)
        self.sessions.park(session)

    def _copy(self, session: Session) -> None:
        copies = session.copies
        session.copies = []
        for target, copied in copies:
            try:
                self.sessions.copy(session, target)
            except HrmError as error:
                self._guard.later(copied.set_exception, error)
            else:
                self._guard.later(copied.set_result, None)

    def _end_processes(self) -> None:
        numbers, self.sessions.unwanted = self.sessions.unwanted, []
        for number in numbers:
            self._guard.later(self._workers.end_session, number)


def _of_another_run(session: str) -> HrmError:
    return HrmError(
        f"The session {session!r} belongs to another run.", "Name the run that made it."
    )
