"""An environment on a server (`hrm-agent environment serve`), used like one on this machine.

All calls of one event loop share one connection, a WebSocket: what is submitted while the loop is
busy with something else goes out in one message, and so do the outcomes that are ready together; a
slow call delays no other.

What happens when the server, or the way to it, breaks down:

* A call is submitted again under its id as soon as the server is back,
  `client_channel.MAX_ATTEMPTS` times at most. The same server knows the id and gives the first
  outcome; one that was started anew runs the call (again): *at least once*.
* A cell of a session: a server notices that its client has gone, ends the call and with it the
  session's process, and rebuilds the session from its cells. A server that was started anew knows
  no cells. It is sent them: the `history` that the caller gave, else the cells that this object has
  seen. Where those are not all there were (the session was begun by somebody else, is too large to
  be remembered, or had several calls under way at once) the cell ends with status `infrastructure`
  and is not run: *at most once*, but for cells whose history is known.
* Calls that wait for a server which stays away for `patience_seconds` end with status
  `infrastructure`. So does one that is not answered within all that it may take: its time in the
  queue, its session's cells, its own limits.
* A peer that says nothing for 15 s, not even to a ping, is taken for dead.

A session belongs to one `RemoteEnvironment`: what is remembered of it is what went through this
one.
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
"""The longest that a call without a deadline waits for its slot."""
_MOST_SECONDS = 7 * 86400.0
_SPARE_SECONDS = 60.0
"""On top of all that a call may take."""


class RemoteEnvironment(Environment):
    """An `Environment` on a server. Thread-safe, and usable from any number of event loops."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        least: Isolation = DEFAULT_ISOLATION,
        patience_seconds: float = 30.0,
    ) -> None:
        """`url`: `http://HOST:PORT`, `https://HOST:PORT` or `unix:PATH`. `token`: by default that
        of the variable HRM_AGENT_ENVIRONMENT_TOKEN. `least`: the level of isolation that the server
        has to give. Raises HrmError where it does not, where nobody listens, or somebody else.
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
        memory, answer = self._peer.session_memory, dict[str, Any]()
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
        """The running loop's."""
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
            return self._made_here(ToolStatus.INVALID_CALL, answer["refused"], call)
        return self._made_here(
            ToolStatus.INFRASTRUCTURE, f"The call failed: {answer['failed']}.", call
        )

    def _made_here(self, status: ToolStatus, text: str, call: RemoteCall) -> ExecutionResult:
        return ExecutionResult(
            status, stderr=text, isolation=self.isolation, attempt=max(1, call.sent)
        )


def _most_seconds(submission: Submission) -> float:
    """All that a call may take on the server."""
    queue = _QUEUE_SECONDS if submission.deadline_seconds is None else submission.deadline_seconds
    cells = len(submission.history or ())
    wall = submission.limits.wall_seconds
    if not (0 <= queue <= _MOST_SECONDS and 0 <= wall <= _MOST_SECONDS):
        return _MOST_SECONDS  # whoever asks for nan is told so by the server
    return min(_MOST_SECONDS, queue + 2 * (1 + cells) * wall)
