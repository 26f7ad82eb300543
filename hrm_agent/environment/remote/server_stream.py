"""The server's side of a client's stream: many calls on one connection, cancelled one by one, answered as they end.

A client sends lists of messages, each with a key of its own choice:

    {"key": 1, "run": SUBMISSION}    {"key": 1, "cancel": true}    {"key": 4, "metrics": true}
    {"key": 2, "fork": {"source": NAME, "target": NAME, "run": RUN}}
    {"key": 3, "end": {"session": NAME, "run": RUN}}

It gets lists of answers with these keys, in the order in which they are ready: "result"; "text" (of metrics); "done";
"refused", for a submission that is none; "error", where the environment cannot; "away", if the server is going down and
has not begun. A connection that ends takes its calls along.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from aiohttp import WSCloseCode, WSMsgType, web

from hrm_agent.environment.base import Environment, ExecutionResult, Submission
from hrm_agent.environment.remote.clients import Client, HeldTooLongError
from hrm_agent.environment.remote.messages import StreamMessage, parse_stream, parse_submission, result_record
from hrm_agent.errors import HrmError
from hrm_agent.strict_json import from_json, to_json
from hrm_agent.trajectory import ToolStatus

__all__ = ["Calls", "Stream"]

_FRAME_CHARACTERS = 1024 * 1024
"""Of the outcomes that share a message, about."""
_MANY, _GATHERING_SECONDS = 32, 0.005
"""With so many calls open, each waits for others far longer than this; outcomes that come in it share a message."""
_MOST_UNREAD = 8 * 1024 * 1024
"""Characters of unsent answers above which no more messages of a client are read."""
_LEAVE_SECONDS = 5.0
"""Timeout for sending the last answers when the server shuts down."""
_LOG = logging.getLogger(__name__)


class Calls:
    """The environment as requests see it: open calls are counted, so that going down can wait for them."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.draining = False
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def outcome(self, client: Client, submission: Submission) -> ExecutionResult:
        """Of a call, held back while its client has too many open. Raises HrmError where the environment cannot."""
        self._open += 1
        self._idle.clear()
        began, seconds = time.monotonic(), submission.deadline_seconds
        try:
            async with client.call(seconds):
                held = time.monotonic() - began
                left = None if seconds is None else seconds - held
                own = replace(submission, run=client.own(submission.run), deadline_seconds=left)
                result = await self.environment.run(own)
                return replace(result, queued_seconds=result.queued_seconds + held)
        except HeldTooLongError:
            why = f"The call had not begun when its deadline of {seconds:g} s was over."
            status, isolation = ToolStatus.INFRASTRUCTURE, self.environment.isolation
            return ExecutionResult(status, stderr=why, queued_seconds=time.monotonic() - began, isolation=isolation)
        finally:
            self._open -= 1
            if not self._open:
                self._idle.set()

    async def answer(self, client: Client, submission: Submission) -> dict[str, Any]:
        """The outcome as an answer, or why there is none."""
        return await _checked(self._answer(client, submission))

    async def _answer(self, client: Client, submission: Submission) -> dict[str, Any]:
        return {"result": result_record(await self.outcome(client, submission))}

    async def fork_session(self, client: Client, *, source: str, target: str, run: str = "") -> None:
        """Counts as a call of the client's. Raises HrmError where the environment cannot."""
        async with client.call():
            await self.environment.fork_session(source, target, run=client.own(run))

    async def end_session(self, client: Client, *, session: str, run: str = "") -> None:
        """Raises HrmError where the environment cannot."""
        await self.environment.end_session(session, run=client.own(run))

    async def drain(self, seconds: float) -> None:
        """Wait until none is open, for `seconds` at most. None may be begun from now on."""
        self.draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()


async def _checked(work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    try:
        return await work
    except HrmError as error:
        return {"error": error.message, "hint": error.hint}
    except Exception:  # whatever it is, the client is to have an answer
        _LOG.exception("a call failed")
        return {"error": "The server failed.", "hint": "See its log."}


class Stream:
    """One client's."""

    def __init__(
        self, calls: Calls, client: Client, socket: web.WebSocketResponse, transport: asyncio.BaseTransport | None
    ) -> None:
        """`transport`: of `socket`, to abort it; None if the client has disconnected already."""
        self._calls, self._client = calls, client
        self._socket, self._transport = socket, transport
        self._tasks: dict[int, asyncio.Task[dict[str, Any]]] = {}
        self._answers: deque[str] = deque()
        self._unread = 0
        self._ready, self._room = asyncio.Event(), asyncio.Event()
        self._room.set()

    async def serve(self, about: dict[str, Any]) -> None:
        """Until the client goes, or is sent away; `about` is the first message."""
        await self._socket.send_str(to_json(about))
        writer = asyncio.create_task(self._write())
        try:
            async for message in self._socket:
                if message.type is not WSMsgType.TEXT:
                    break
                self._take(message.data)
                await self._room.wait()
        except HrmError as error:
            await self._socket.close(code=WSCloseCode.POLICY_VIOLATION, message=error.message.encode()[:100])
        finally:
            writer.cancel()
            for task in self._tasks.values():
                task.cancel()

    async def leave(self) -> None:
        """Send the answers that are ready and close; abort the connection if the client does not read."""
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self._flush()
                await self._socket.close(code=WSCloseCode.GOING_AWAY)
                return
        if isinstance(self._transport, asyncio.WriteTransport):
            self._transport.abort()

    def _take(self, data: str) -> None:
        """Begin what a message asks for. Raises HrmError if it is malformed: no more is read then."""
        for message in parse_stream(from_json(data)):
            key = message["key"]
            if "cancel" in message:
                task = self._tasks.get(key)
                if task is not None:
                    task.cancel()
            elif key in self._tasks:
                raise HrmError("key: in use.")
            elif self._calls.draining:
                self._answer(key, {"away": True})
            else:
                task = self._tasks[key] = asyncio.create_task(self._do(message))
                task.add_done_callback(partial(self._end, key))

    def _end(self, key: int, task: asyncio.Task[dict[str, Any]]) -> None:
        del self._tasks[key]
        if not task.cancelled():
            self._answer(key, task.result())

    async def _do(self, message: StreamMessage) -> dict[str, Any]:
        if "run" not in message:
            return await _checked(self._control(message))
        try:
            submission = parse_submission(message["run"])
        except HrmError as error:
            return {"refused": f"{error.message} {error.hint}".strip()}
        return await self._calls.answer(self._client, submission)

    async def _control(self, message: StreamMessage) -> dict[str, Any]:
        if "metrics" in message:
            return {"text": await self._calls.environment.metrics()}
        if "fork" in message:
            await self._calls.fork_session(self._client, **message["fork"])
        elif "end" in message:
            await self._calls.end_session(self._client, **message["end"])
        return {"done": True}

    def _answer(self, key: int, answer: dict[str, Any]) -> None:
        text = to_json({"key": key, **answer})
        self._answers.append(text)
        self._unread += len(text)
        if self._unread > _MOST_UNREAD:
            self._room.clear()
        self._ready.set()

    async def _write(self) -> None:
        with suppress(ConnectionError):  # the client has gone: the reader sees that too
            while await self._ready.wait():
                await self._flush()
                if len(self._tasks) >= _MANY:
                    await asyncio.sleep(_GATHERING_SECONDS)

    async def _flush(self) -> None:
        """All that are ready go out together; while a slow reader lets them wait, more get ready."""
        self._ready.clear()
        while self._answers:
            size, parts = 0, list[str]()
            while self._answers and size < _FRAME_CHARACTERS:
                parts.append(self._answers.popleft())
                size += len(parts[-1])
            await self._socket.send_str(f"[{','.join(parts)}]")
            self._unread -= size
            if self._unread <= _MOST_UNREAD:
                self._room.set()
