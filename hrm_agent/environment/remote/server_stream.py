"""Server side of a client's stream: many calls on one connection, cancelled one by one, answered as
they end.

A client sends lists of messages, each with a key that it chooses:

    {"key": 1, "run": SUBMISSION}    {"key": 1, "cancel": true}    {"key": 4, "metrics": true}
    {"key": 2, "fork": {"source": NAME, "target": NAME, "run": RUN}}
    {"key": 3, "end": {"session": NAME, "run": RUN}}

It gets lists of answers, in the order in which they are ready. An answer has the key of its
request, and one of these fields: "result"; "text" (metrics); "done"; "refused" for an invalid
submission; "error" if the environment cannot run the request; "away" if the server is shutting down
and the request has not begun. When a connection ends, its calls end.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from aiohttp import WSCloseCode, WSMsgType, web

from hrm_agent.basics.guarded_loop import LoopGuard
from hrm_agent.basics.strict_json import to_json
from hrm_agent.environment.remote.calls import Calls, answer_or_error
from hrm_agent.environment.remote.clients import Client
from hrm_agent.environment.remote.exchange import Exchange
from hrm_agent.environment.remote.messages import (
    StreamMessage,
    listed,
    parse_stream,
    parse_submission,
)
from hrm_agent.errors import HrmError

__all__ = ["Stream"]

_FRAME_CHARACTERS = 1024 * 1024
"""Approximate maximum number of characters of outcomes in one message."""
_MANY, _GATHERING_SECONDS = 32, 0.005
"""Number of running calls from which outcomes are gathered into shared messages, and the seconds of
gathering. Among so many calls, each waits for others far longer than these seconds.
"""
_AT_ONCE = 64
"""Number of requests of a message that are accepted before other tasks get a turn."""
_SIGN_SECONDS = 3.0
"""Seconds between pings to a client whose messages are not read at the moment. It is less than the
interval between the client's own pings.
"""
_LEAVE_SECONDS = 5.0
"""Timeout in seconds for sending the last answers when the server shuts down."""
_GUARD = LoopGuard("environment-streams", rests=False)


class Stream:
    """Stream of one client."""

    def __init__(
        self,
        calls: Calls,
        client: Client,
        socket: web.WebSocketResponse,
        transport: asyncio.BaseTransport | None,
    ) -> None:
        """Make a stream. `transport`: transport of `socket`, by which the connection is aborted
        (None if the client has already disconnected).
        """
        self._calls = calls
        self._client = client
        self._socket = socket
        self._transport = transport
        self._exchange = Exchange(
            calls, client, lambda key, answer: to_json({"key": key, **answer})
        )
        self._exchange.abort = self._abort
        self._room = self._exchange.room

    async def serve(self, about: dict[str, Any]) -> None:
        """Serve until the client disconnects or the stream is closed. `about` is the first
        message.
        """
        await self._socket.send_str(to_json(about))
        writer = asyncio.create_task(self._write())
        writer.add_done_callback(self._written)
        try:
            async for message in self._socket:
                if message.type is not WSMsgType.TEXT:
                    break
                await self._take(message.data)
        except HrmError as error:
            await self._socket.close(
                code=WSCloseCode.POLICY_VIOLATION, message=error.message.encode()[:100]
            )
        except ConnectionError:  # the client disconnected while its messages were not read
            pass
        finally:
            writer.cancel()
            self._exchange.close()

    async def leave(self) -> None:
        """Send the answers that are ready, and close the connection. If the client does not read,
        the connection is aborted.
        """
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self._flush()
                await self._socket.close(code=WSCloseCode.GOING_AWAY)
                return
        self._abort()

    def _written(self, writer: asyncio.Task[None]) -> None:
        """Abort the connection when the writer has ended, so that the client connects again instead
        of waiting forever.
        """
        if writer.cancelled():
            return
        if (error := writer.exception()) is not None:
            _GUARD.caught(error)
        self._abort()

    def _abort(self) -> None:
        if isinstance(self._transport, asyncio.WriteTransport):
            self._transport.abort()

    async def _take(self, data: str) -> None:
        """Start the requests of a message. Raises HrmError if the message is malformed. The rest of
        it is not read then.
        """
        messages = listed(await self._client.read(data))
        for first in range(0, len(messages), _AT_ONCE):
            if first:
                await asyncio.sleep(0)
            await self._until_room()
            for message in parse_stream(messages[first : first + _AT_ONCE], first):
                self._begin(message)

    async def _until_room(self) -> None:
        """Wait until more requests may be accepted. Raises ConnectionError if the client has
        disconnected.

        During the wait, messages are not read, so the client's pings are not answered. The server
        sends pings of its own instead: without them, the client would consider the connection dead
        and send all its calls again.
        """
        while not self._room.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._room.wait(), _SIGN_SECONDS)
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._socket.ping(), _SIGN_SECONDS)

    def _begin(self, message: StreamMessage) -> None:
        key = message["key"]
        if "cancel" in message:
            self._exchange.cancel(key)
        elif key in self._exchange:
            raise HrmError("key: an open request has this key already.")
        elif self._calls.draining:
            self._exchange.answer(key, {"away": True})
        elif "run" not in message:
            self._exchange.take_work(key, lambda: answer_or_error(lambda: self._control(message)))
        else:
            try:
                submission = parse_submission(message["run"])
            except HrmError as error:
                self._exchange.answer(key, {"refused": f"{error.message} {error.hint}".strip()})
            else:
                self._exchange.take_call(key, submission)

    async def _control(self, message: StreamMessage) -> dict[str, Any]:
        if "metrics" in message:
            return {"text": await self._calls.environment.metrics()}
        if "fork" in message:
            await self._calls.fork_session(self._client, **message["fork"])
        elif "end" in message:
            await self._calls.end_session(self._client, **message["end"])
        return {"done": True}

    async def _write(self) -> None:
        with suppress(ConnectionError):  # the client has gone, which the reader notices too
            while await self._exchange.ready.wait():
                await self._flush()
                if self._exchange.under_way >= _MANY:
                    await asyncio.sleep(_GATHERING_SECONDS)

    async def _flush(self) -> None:
        """Send all ready answers, in shared messages. While a slow reader delays a message, more
        answers become ready.
        """
        exchange = self._exchange
        exchange.ready.clear()
        while text := exchange.next():
            size = len(text)
            parts = [text]
            while size < _FRAME_CHARACTERS and (text := exchange.next()):
                parts.append(text)
                size += len(text)
            await self._socket.send_str(f"[{','.join(parts)}]")
            exchange.was_read(size)
