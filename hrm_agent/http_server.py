"""What our HTTP servers share: an aiohttp application with middlewares for authentication and errors, and limits.

Who holds the token may ask: it is compared in constant time. What a browser could be made to send is refused: an
Origin, a foreign Host, any content type but JSON. A request is bounded in bytes and seconds; a connection on which
nothing was asked is closed, and so is one too many. A server adds its routes and the form of its errors.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web, web_app
from aiohttp.typedefs import Handler

from hrm_agent.errors import HrmError
from hrm_agent.strict_json import from_json, to_json

__all__ = [
    "HEALTH",
    "MAX_CONNECTIONS",
    "MAX_REQUEST_BYTES",
    "SECONDS_TO_ASK",
    "BadRequestError",
    "application",
    "body_of",
    "json_answer",
    "listening",
    "serve_routes",
]

MAX_REQUEST_BYTES = 2 * 1024 * 1024
"""Of a request's body, and of a message on a stream."""
MAX_CONNECTIONS = 1024
SECONDS_TO_ASK = 30.0
"""A connection's first request has to have its header within, each request its body."""
HEALTH = "health"
"""Name of the one route that is answered without a token."""
_SHOWN = 200
"""Characters of a path in an error's message."""


class BadRequestError(Exception):
    """A request that is answered with an error: its HTTP status, what was wrong, and what to do."""

    def __init__(self, status: int, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.status, self.message, self.hint = status, message, hint


def application(
    token: str,
    hosts: Sequence[str],
    request_bytes: int,
    refuse: Callable[[Exception, web.Request], web.StreamResponse],
) -> web.Application:
    """Without routes. `hosts`: what a request's Host header may say; anything if empty. `refuse`: the answer to a
    request whose handling raised. Raises `HrmError` for an empty token.
    """
    if not token:
        raise HrmError("A server without a token would answer anybody.", "Give it a token.")
    gate = _RequestGate(token, hosts)

    @web.middleware
    async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except Exception as error:  # whatever it is, the client is to have an answer
            return refuse(error, request)

    @web.middleware
    async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
        gate.reject_browsers(request)
        if request.match_info.route.name != HEALTH or "Authorization" in request.headers:
            gate.require_token(request)
        return await handler(request)

    return web.Application(middlewares=[answer_errors, admit], client_max_size=request_bytes)


def serve_routes(app: web.Application, routes: Sequence[web.RouteDef]) -> None:
    """Answer `routes`, and 404 for all else. No `Expect` header is answered: aiohttp would, before any middleware."""
    every = (*routes, web.route("*", "/{path:(?s:.*)}", _not_there))
    quiet = {"expect_handler": _say_nothing}
    app.add_routes([web.RouteDef(each.method, each.path, each.handler, each.kwargs | quiet) for each in every])


async def _say_nothing(request: web.Request) -> web.StreamResponse | None:
    del request


async def _not_there(request: web.Request) -> web.StreamResponse:
    raise BadRequestError(404, f"There is no {request.method} {request.path[:_SHOWN]}.")


class _RequestGate:
    """Who comes in."""

    def __init__(self, token: str, hosts: Sequence[str]) -> None:
        self._token = f"Bearer {token}".encode()
        self._hosts = frozenset(hosts)

    def reject_browsers(self, request: web.Request) -> None:
        """Raise for what a page in a browser could have sent."""
        if "Origin" in request.headers:
            raise BadRequestError(403, "Requests with an Origin header are refused.")
        if self._hosts and _host(request.headers.get("Host", "")) not in self._hosts:
            raise BadRequestError(403, "The Host header names another server.", "Send one of the names it serves.")

    def require_token(self, request: web.Request) -> None:
        """Raise for a request without the token."""
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self._token):
            raise BadRequestError(401, "The token is missing or wrong.", "Send `Authorization: Bearer TOKEN`.")


async def body_of(request: web.Request) -> Any:
    """The JSON that a request carries."""
    if request.content_type != "application/json":
        raise BadRequestError(415, "The content type has to be application/json.")
    try:
        async with asyncio.timeout(SECONDS_TO_ASK):
            return from_json(await request.read())
    except TimeoutError:
        raise BadRequestError(408, f"The request did not come within {SECONDS_TO_ASK:.0f} s.") from None
    except web.HTTPRequestEntityTooLarge:
        raise BadRequestError(413, f"A request has at most {request.client_max_size} bytes.") from None
    except HrmError as error:
        raise BadRequestError(400, error.message, error.hint) from None


def json_answer(record: Any, status: int = 200) -> web.Response:
    return web.Response(body=to_json(record).encode(), status=status, content_type="application/json")


@asynccontextmanager
async def listening(
    app: web.Application, listener: socket.socket, drain: Callable[[], Awaitable[object]]
) -> AsyncGenerator[None]:
    """Have requests answered inside the block; leaving it drains. `listener` is closed."""
    loop = asyncio.get_running_loop()
    silent: set[Any] = set()

    @web.middleware
    async def heard(request: web.Request, handler: Handler) -> web.StreamResponse:
        silent.discard(request.protocol)
        return await handler(request)

    app.middlewares.insert(0, heard)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    server = runner.server
    assert server is not None

    def connection() -> asyncio.Protocol:
        protocol = server()
        silent.add(protocol)
        room = len(server.connections) < MAX_CONNECTIONS
        loop.call_later(SECONDS_TO_ASK if room else 0, _drop_silent, protocol, silent)
        return protocol

    listening = await loop.create_server(connection, sock=listener)
    try:
        yield
    finally:
        listening.close()
        await drain()
        await runner.cleanup()
        _forget_handlers()


def _drop_silent(protocol: Any, silent: set[Any]) -> None:
    """End a connection on which nothing was asked: aiohttp itself waits for a first request without end."""
    if protocol in silent:
        silent.discard(protocol)
        if protocol.transport is not None:
            protocol.transport.abort()


def _forget_handlers() -> None:
    """A cache in aiohttp keeps the last thousand handlers of the process, and so all that they serve, however large."""
    cached = getattr(web_app, "_cached_build_middleware", None)
    if cached is not None:
        cached.cache_clear()


def _host(header: str) -> str:
    """`[::1]:80` -> `::1`."""
    name = header.rpartition(":")[0] if header.rpartition(":")[2].isdecimal() else header
    return name.strip("[]").lower()
