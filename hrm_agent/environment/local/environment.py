"""Runs model-written Python on this machine, in processes isolated by the kernel.

`Scheduler` selects the next call and, for a call of a session, its process. `LocalWorkers` runs the
call in a slot. `sandbox/kernel.py` and `docs/environment.md` describe how slots are isolated, and
what the isolation does not cover.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from hrm_agent.environment.base import ExecutionResult, Limits, Submission
from hrm_agent.environment.isolation import DEFAULT_ISOLATION, Isolation
from hrm_agent.environment.local.slots import LocalWorkers
from hrm_agent.environment.scheduler.admission import QUEUE_LIMIT, Bounds
from hrm_agent.environment.scheduler.scheduler import ScheduledEnvironment, Scheduler, notify
from hrm_agent.environment.scheduler.workers import Work

__all__ = ["LocalEnvironment"]


class LocalEnvironment(ScheduledEnvironment):
    """`Environment` on this machine. Thread-safe, and usable from any number of event loops."""

    def __init__(
        self,
        *,
        slots: int | None = None,
        max_sessions: int = 64,
        isolation: Isolation = DEFAULT_ISOLATION,
        packages: Sequence[str] | None = None,
        queue_limit: int = QUEUE_LIMIT,
        cgroup: Path | None = None,
        spare_seconds: float | None = None,
    ) -> None:
        """Start an environment. Raises HrmError if this machine isolates less than `isolation`.

        `slots`: maximum number of calls that run at once (None: `default_slots`).

        `max_sessions`: maximum number of sessions with a process, at least `slots`. Beyond it, the
        session that was idle longest loses its process. It is rebuilt from its cells when it is
        used again.

        `isolation`: the least level accepted.

        `packages`: installed distributions that snippets may import (None: numpy and sympy, if they
        are installed).

        `queue_limit`: maximum number of waiting calls. Beyond it, `run` waits for room and `submit`
        raises QueueFullError.

        `cgroup`: folder of a version 2 cgroup that was delegated to this user, for L3 (None: for
        L3, the cgroup of this process).

        `spare_seconds`: seconds for which unused processes above `slots` are kept (None: one, or
        less if no session is alive).
        """
        self._workers = LocalWorkers(
            slots,
            isolation=isolation,
            packages=packages,
            cgroup=cgroup,
            spare_seconds=spare_seconds,
        )
        self._scheduler = Scheduler(
            self._workers, max_sessions=max_sessions, bounds=Bounds(queue=queue_limit)
        )
        self.slots = self._workers.slots
        self.max_sessions = max(max_sessions, self.slots)

    @property
    def isolation(self) -> str:
        return str(self._workers.isolation)

    @property
    def missing(self) -> Mapping[str, str]:
        """Layers of isolation that are missing: layer -> reason."""
        return self._workers.missing

    @property
    def pid(self) -> int:
        """Process id of the fork server."""
        return self._workers.pid

    async def warm_up(self) -> None:
        """Start all slots, with and without the packages, so that no later call waits for an
        import.
        """
        loop = asyncio.get_running_loop()
        for code in ("", *(f"# {name}" for name in self._workers.packages[:1])):
            answers: list[asyncio.Future[ExecutionResult]] = [
                loop.create_future() for _ in range(self.slots)
            ]
            for answer in answers:
                waiter = partial(notify, loop, answer)
                self._workers.start(
                    Work(code, Limits(), lambda result, _, tell=waiter: tell(result))
                )
            await asyncio.gather(*answers)

    def submit(self, submission: Submission) -> Future[ExecutionResult]:
        """Run a call without an event loop. Cancelling the future kills the call."""
        return self._scheduler.submit(submission)

    async def drain(self, seconds: float) -> bool:
        """Accept no more calls, and wait for the open ones. False if calls are still open after
        `seconds`.
        """
        return await asyncio.to_thread(self._scheduler.drain, seconds)

    def shutdown(self) -> None:
        """Close the environment without an event loop. In a forked child of the process that made
        the environment, only release the inherited resources.
        """
        if self._scheduler.is_ours:
            self._scheduler.close()
        else:
            self._workers.abandon()
