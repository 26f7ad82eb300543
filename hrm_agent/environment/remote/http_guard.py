"""Authentication and limits shared by our HTTP servers: who may ask, how much, and for how long.

Who holds the token may ask: it is compared in constant time. What a browser could be made to send is refused: an
Origin, a foreign Host, any content type but JSON. A request is bounded in bytes and seconds; a connection on which
nothing was asked is closed, and so is one too many.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from hrm_agent.environment.remote.messages import from_json, to_json
from hrm_agent.errors import HrmError

__all__ = [
    "MAX_CONNECTIONS",
    "MAX_REQUEST_BYTES",
    "SECONDS_TO_ASK",
    "BadRequestError",
    "RequestGate",
    "body_of",
    "json_answer",
    "listening",
]

MAX_REQUEST_BYTES = 2 * 1024 * 1024
"""Of a request's body, and of a message on a stream."""
MAX_CONNECTIONS = 1024
SECONDS_TO_ASK = 30.0
"""A connection's first request has to have its header within, each request its body."""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class BadRequestError(Exception):
    """A request that is answered with an error: its HTTP status, what was wrong, and what to do."""

    def __init__(self, status: int, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.status, self.message, self.hint = status, message, hint


class RequestGate:
    """Who comes in."""

    def __init__(self, token: str, hosts: Sequence[str] = ()) -> None:
        """`hosts`: what a request's Host header may say; anything if empty. Raises `HrmError` for an empty token."""
        if not token:
            raise HrmError("A server without a token would answer anybody.", "Give it a token.")
        self._token = f"Bearer {token}".encode()
        self._hosts = frozenset(hosts)

    def refuse_pages(self, request: web.BaseRequest) -> None:
        """Raise for what a page in a browser could have sent."""
        headers = request.headers
        if "Origin" in headers or (self._hosts and _host(headers.get("Host", "")) not in self._hosts):
            raise BadRequestError(403, "Requests with an Origin header are refused.")

    def refuse_strangers(self, request: web.BaseRequest) -> None:
        """Raise for a request without the token."""
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self._token):
            raise BadRequestError(401, "The token is missing or wrong.", "Send `Authorization: Bearer TOKEN`.")


async def body_of(request: web.BaseRequest) -> Any:
    """The JSON that a request carries."""
    if request.content_type != "application/json":
        raise BadRequestError(415, "The content type has to be application/json.")
    try:
        async with asyncio.timeout(SECONDS_TO_ASK):
            return from_json(await request.read())
    except TimeoutError:
        raise BadRequestError(408, f"The request did not come within {SECONDS_TO_ASK:.0f} s.") from None
    except HrmError as error:
        raise BadRequestError(400, error.message, error.hint) from None


def json_answer(record: Any, status: int = 200) -> web.Response:
    return web.Response(body=to_json(record).encode(), status=status, content_type="application/json")


@asynccontextmanager
async def listening(
    handle: Handler,
    listener: socket.socket,
    drain: Callable[[], Awaitable[object]],
    request_bytes: int = MAX_REQUEST_BYTES,
) -> AsyncGenerator[None]:
    """Have requests answered by `handle` inside the block; leaving it drains. `listener` is closed."""
    loop = asyncio.get_running_loop()
    silent: set[Any] = set()

    def request(message: Any, payload: Any, protocol: Any, writer: Any, task: asyncio.Task[None]) -> web.BaseRequest:
        silent.discard(protocol)
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=request_bytes)

    def connection() -> asyncio.Protocol:
        protocol = server()
        silent.add(protocol)
        room = len(server.connections) < MAX_CONNECTIONS
        loop.call_later(SECONDS_TO_ASK if room else 0, _drop_silent, protocol, silent)
        return protocol

    server = web.Server(handle, handler_cancellation=True, request_factory=request, access_log=None)
    listening = await loop.create_server(connection, sock=listener)
    try:
        yield
    finally:
        listening.close()
        await drain()
        server.pre_shutdown()
        await server.shutdown(1.0)


def _drop_silent(protocol: Any, silent: set[Any]) -> None:
    """End a connection on which nothing was asked: aiohttp itself waits for a first request without end."""
    if protocol in silent:
        silent.discard(protocol)
        if protocol.transport is not None:
            protocol.transport.abort()


def _host(header: str) -> str:
    """`[::1]:80` -> `::1`."""
    name = header.rpartition(":")[0] if header.rpartition(":")[2].isdecimal() else header
    return name.strip("[]").lower()
