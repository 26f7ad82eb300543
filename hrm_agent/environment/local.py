"""Runs model-written Python on this machine."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import count

from hrm_agent.environment.isolation import DEFAULT_ISOLATION, Isolation
from hrm_agent.environment.result import Environment, ExecutionResult, SessionState, Submission
from hrm_agent.environment.slots import LocalWorkers
from hrm_agent.environment.workers import Work
from hrm_agent.errors import HrmError

__all__ = ["LocalEnvironment"]


class LocalEnvironment(Environment):
    """First in, first out; to be replaced by the queue."""

    def __init__(
        self,
        *,
        slots: int | None = None,
        max_sessions: int = 64,
        isolation: Isolation = DEFAULT_ISOLATION,
        packages: Sequence[str] | None = None,
    ) -> None:
        self._workers = LocalWorkers(slots, isolation=isolation, packages=packages)
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._queue: deque[tuple[Submission, Future[ExecutionResult]]] = deque()
        self._running = 0
        self._sessions: dict[str, int] = {}
        self._numbers = count(1)
        self._closed = False
        self.slots, self.max_sessions = self._workers.slots, max_sessions

    @property
    def isolation(self) -> str:
        return str(self._workers.isolation)

    @property
    def pid(self) -> int:
        """Process id of the fork server."""
        return self._workers.pid

    async def run(self, submission: Submission) -> ExecutionResult:
        if self._closed or self._owner != os.getpid():
            raise HrmError("The environment cannot run code: the environment was closed.", "Make a new one.")
        future: Future[ExecutionResult] = Future()
        with self._lock:
            self._queue.append((submission, future))
            self._pump()
        return await asyncio.wrap_future(future)

    def _pump(self) -> None:
        while self._queue and self._running < self.slots:
            submission, future = self._queue.popleft()
            if not future.cancelled():
                self._start(submission, future)

    def _start(self, submission: Submission, future: Future[ExecutionResult]) -> None:
        self._running += 1
        state = None
        number = 0
        if submission.session is not None:
            state = SessionState.KEPT if submission.session in self._sessions else SessionState.NEW
            number = self._sessions.setdefault(submission.session, next(self._numbers))

        def done(result: ExecutionResult, lost: bool) -> None:
            with self._lock:
                self._running -= 1
                self._pump()
            if future.set_running_or_notify_cancel():
                future.set_result(replace(result, session=state))

        work = Work(submission.code, submission.limits, done, number, next(self._numbers))
        future.add_done_callback(lambda f: self._workers.kill(work) if f.cancelled() else None)
        self._workers.start(work)

    async def fork_session(self, source: str, target: str) -> None:
        raise NotImplementedError

    async def end_session(self, session: str) -> None:
        number = self._sessions.pop(session, None)
        if number is not None:
            self._workers.end_session(number)

    async def metrics(self) -> str:
        return ""

    async def close(self) -> None:
        await asyncio.to_thread(self.shutdown)

    def shutdown(self) -> None:
        """`close` for where there is no event loop."""
        self._closed = True
        self._workers.close()
