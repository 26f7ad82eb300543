"""Calls of a server's clients to its environment: quotas, deadlines, and waiting for open calls
when the server shuts down (draining).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hrm_agent.environment.base import Environment, ExecutionResult, Submission
from hrm_agent.environment.remote.clients import Client, HeldTooLongError
from hrm_agent.environment.remote.messages import MOST_WAIT, result_record
from hrm_agent.errors import HrmError
from hrm_agent.trajectory import ToolStatus

__all__ = ["Calls", "answer_or_error"]

_NO_WAIT = 0.001
"""Seconds of waiting that are not subtracted from a deadline."""
_LOG = logging.getLogger(__name__)


class Calls:
    """Calls to an environment. Open calls are counted, so that a shutdown can wait for them."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.draining = False
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def opened(self) -> None:
        """Count a call that was accepted."""
        self._open += 1
        self._idle.clear()

    def ended(self) -> None:
        """Count a call as ended."""
        self._open -= 1
        if not self._open:
            self._idle.set()

    async def outcome(self, client: Client, submission: Submission) -> ExecutionResult:
        """Run a call. It waits while its client has too many open calls. Raises HrmError if the
        environment cannot run it.
        """
        self.opened()
        began = time.monotonic()
        seconds = submission.deadline_seconds
        # an invalid deadline is passed on, so that the environment refuses the call
        bounded = seconds is not None and 0 <= seconds <= MOST_WAIT
        try:
            async with client.call(seconds if bounded else None):
                held = time.monotonic() - began
                left = seconds
                # after no real wait the deadline is unchanged, so that the outcome names the
                # caller's number
                if seconds is not None and bounded and held > _NO_WAIT:
                    left = max(0.0, seconds - held)
                own = replace(
                    submission,
                    run=client.own(submission.run),
                    client=client.name,
                    deadline_seconds=left,
                )
                result = await self.environment.run(own)
                return replace(result, queued_seconds=result.queued_seconds + held)
        except HeldTooLongError:
            return self._too_late(seconds, time.monotonic() - began)
        finally:
            self.ended()

    async def answer(
        self, client: Client, submission: Submission, held_since: float | None = None
    ) -> dict[str, Any]:
        """Result of a call as a record, else its error. `held_since`: time from which the call was
        held, by the monotonic clock (None if it was not held).
        """

        async def work() -> dict[str, Any]:
            if held_since is None:
                return {"result": result_record(await self.outcome(client, submission))}
            held = time.monotonic() - held_since
            seconds = submission.deadline_seconds
            due = submission
            if seconds is not None and held < seconds <= MOST_WAIT:
                due = replace(submission, deadline_seconds=seconds - held)
            result = await self.outcome(client, due)
            queued = result.queued_seconds + held
            return {"result": result_record(replace(result, queued_seconds=queued))}

        return await answer_or_error(work)

    def too_late(self, submission: Submission, held_since: float) -> dict[str, Any]:
        """Result of a call whose deadline passed while it was held, as a record."""
        return {
            "result": result_record(
                self._too_late(submission.deadline_seconds, time.monotonic() - held_since)
            )
        }

    def _too_late(self, seconds: float | None, held: float) -> ExecutionResult:
        why = f"The call had not begun when its deadline of {seconds:g} s was over."
        isolation = self.environment.isolation
        return ExecutionResult(
            ToolStatus.INFRASTRUCTURE, stderr=why, queued_seconds=held, isolation=isolation
        )

    async def fork_session(
        self, client: Client, *, source: str, target: str, run: str = ""
    ) -> None:
        """Fork a session. It counts as a call of the client. Raises HrmError if the environment
        cannot fork the session.
        """
        async with client.call():
            await self.environment.fork_session(source, target, run=client.own(run))

    async def end_session(self, client: Client, *, session: str, run: str = "") -> None:
        """End a session. Raises HrmError if the environment cannot end it."""
        await self.environment.end_session(session, run=client.own(run))

    async def drain(self, seconds: float) -> None:
        """Set `draining`, so that no new call may begin, and wait until no call is open, for at
        most `seconds`.
        """
        self.draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()


async def answer_or_error(
    work: Callable[[], Coroutine[Any, Any, dict[str, Any]]],
) -> dict[str, Any]:
    """Result of `work`, else its error as a record.

    `work` is a function, not a coroutine: if this task is cancelled before its first step, no
    coroutine was made that nobody awaits.
    """
    try:
        return await work()
    except HrmError as error:
        return {"error": error.message, "hint": error.hint}
    except Exception:  # the client gets a response to any error
        _LOG.exception("a call failed")
        return {"error": "The server failed.", "hint": "See its log."}
