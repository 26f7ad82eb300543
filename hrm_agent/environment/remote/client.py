"""Environment on a server (`hrm-agent environment serve`), used like an environment on this
machine.

All calls of one event loop share one connection, a WebSocket. Calls that are submitted while the
loop is busy are sent in one message. Outcomes that are ready together also share a message. A slow
call delays no other call.

Failures of the server or the network have these consequences:

* A call is submitted again under its id as soon as the server is back, at most
  `client_channel.MAX_ATTEMPTS` times. If the server is still the same, it knows the id and returns
  the first outcome. A restarted server runs the call again. So a call runs *at least once*.
* When a client is gone, the server ends the client's running call and the session's process, and
  later rebuilds the session from its cells. A restarted server knows no cells, so the client sends
  them: the `history` given by the caller, else the cells that this object has seen.
* If the client does not know all cells of a session, its call is not run on a restarted server, and
  ends with status `infrastructure`. Cells are unknown if another client began the session, if the
  session is too large to be remembered, or if several of its calls were running. Such a call runs
  *at most once*.
* Calls that wait for an absent server for `patience_seconds` end with status `infrastructure`. So
  does a call that has no answer within its longest duration, which is computed from its deadline,
  its session's cells and its limits.
* A peer that is silent for 15 s, even to pings, counts as dead.

A session belongs to one `RemoteEnvironment`, which remembers only the calls made through itself.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from dataclasses import replace
from typing import Any

from hrm_agent.environment.base import Environment, ExecutionResult, Submission
from hrm_agent.environment.isolation import DEFAULT_ISOLATION, Isolation
from hrm_agent.environment.remote.address import about_of, ask, parse_address, token_for
from hrm_agent.environment.remote.client_channel import Channel, Peer, RemoteCall
from hrm_agent.environment.remote.messages import parse_result
from hrm_agent.errors import HrmError
from hrm_agent.trajectory import ToolStatus

__all__ = ["RemoteEnvironment"]

_QUEUE_SECONDS = 3600.0
"""Longest time in the queue of a call without a deadline."""
_MOST_SECONDS = 7 * 86400.0
_SPARE_SECONDS = 60.0
"""Margin in addition to the longest duration of a call."""


class RemoteEnvironment(Environment):
    """`Environment` on a server. Thread-safe, and usable from any number of event loops."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        least: Isolation = DEFAULT_ISOLATION,
        patience_seconds: float = 30.0,
    ) -> None:
        """Connect to a server.

        `url`: `http://HOST:PORT`, `https://HOST:PORT` or `unix:PATH`. `token`: bearer token (None:
        the variable HRM_AGENT_ENVIRONMENT_TOKEN, else the kept token of a server on this machine).
        `least`: the least isolation level that is accepted. Raises HrmError if the server isolates
        less, if nothing listens, or if the server is not an hrm-agent environment.
        """
        address = parse_address(url)
        token = token_for(address, token)
        about = about_of(ask(address, "/health", token), address, least)
        self._peer = Peer(address, token, least, about, patience_seconds)
        self._closed = False
        self._lock = threading.Lock()
        self._channels: dict[asyncio.AbstractEventLoop, Channel] = {}

    def __repr__(self) -> str:
        return f"RemoteEnvironment({str(self._peer.address)!r})"

    @property
    def isolation(self) -> str:
        return self._peer.about.isolation

    async def run(self, submission: Submission) -> ExecutionResult:
        if submission.id is None:
            submission = replace(submission, id=uuid.uuid4().hex)
        memory = self._peer.session_memory
        answer = dict[str, Any]()
        result: ExecutionResult | None = None
        if submission.session is not None:
            memory.opened(submission.session)
        try:
            call, answer = await self._ask({}, submission, _most_seconds(submission))
            result = self._result(call, answer)
            return result
        finally:
            if submission.session is not None:
                memory.ended(submission, result, answer.get("boot", ""))

    async def fork_session(self, source: str, target: str, *, run: str = "") -> None:
        await self._control({"fork": {"source": source, "target": target, "run": run}})
        self._peer.session_memory.copy(source, target)

    async def end_session(self, session: str, *, run: str = "") -> None:
        await self._control({"end": {"session": session, "run": run}})
        self._peer.session_memory.forget(session)

    async def metrics(self) -> str:
        return str((await self._control({"metrics": True}))["text"])

    async def close(self) -> None:
        with self._lock:
            self._closed = True
            channels = list(self._channels.values())
            self._channels.clear()
        here = asyncio.get_running_loop()
        for channel in channels:
            if channel.loop is here:
                await channel.close()
            elif channel.loop.is_running():
                await asyncio.wrap_future(
                    asyncio.run_coroutine_threadsafe(channel.close(), channel.loop)
                )

    async def _control(self, message: dict[str, Any]) -> dict[str, Any]:
        _, answer = await self._ask(message, None, 0.0)
        if "done" in answer or "text" in answer:
            return answer
        raise HrmError(f"{self._peer.address}: {answer.get('failed') or answer.get('refused')}.")

    async def _ask(
        self, message: dict[str, Any], submission: Submission | None, seconds: float
    ) -> tuple[RemoteCall, dict[str, Any]]:
        spare = _SPARE_SECONDS + self._peer.patience_seconds
        call, answer = await self._channel().ask(message, submission, seconds + spare)
        if "error" in answer:
            raise HrmError(str(answer["error"]), str(answer.get("hint", "")))
        return call, answer

    def _channel(self) -> Channel:
        """Channel of the running event loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._closed:
                raise HrmError(
                    "The environment cannot run code: it was closed.",
                    "Make a new RemoteEnvironment.",
                )
            channel = self._channels.get(loop)
            if channel is None or channel.closed:
                for other in [other for other in self._channels if other.is_closed()]:
                    del self._channels[other]
                channel = self._channels[loop] = Channel(self._peer)
            return channel

    def _result(self, call: RemoteCall, answer: dict[str, Any]) -> ExecutionResult:
        if "result" in answer:
            result = parse_result(answer["result"])
            return (
                replace(result, attempt=result.attempt + call.sent - 1) if call.sent > 1 else result
            )
        if "refused" in answer:
            status = ToolStatus.INVALID_CALL
            why = answer["refused"]
        else:
            status = ToolStatus.INFRASTRUCTURE
            why = f"The call failed: {answer['failed']}."
        return ExecutionResult(
            status, stderr=why, isolation=self.isolation, attempt=max(1, call.sent)
        )


def _most_seconds(submission: Submission) -> float:
    """Longest duration of a call on the server, in seconds."""
    queue = _QUEUE_SECONDS if submission.deadline_seconds is None else submission.deadline_seconds
    cells = len(submission.history or ())
    wall = submission.limits.wall_seconds
    if not (0 <= queue <= _MOST_SECONDS and 0 <= wall <= _MOST_SECONDS):
        return _MOST_SECONDS  # the server reports invalid values such as nan
    return min(_MOST_SECONDS, queue + 2 * (1 + cells) * wall)
