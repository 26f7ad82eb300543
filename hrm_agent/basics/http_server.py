"""Shared parts of the HTTP servers: an aiohttp application with limits, and middlewares for
authentication and errors.

A request needs the token, and the time of a refusal reveals nothing about it. Requests that a
browser could be made to send are refused: an Origin, a foreign Host, any content type but JSON. A
server with pages defines what its pages send (`hrm_agent.viewer.security`). A request is bounded in
bytes and seconds.

A connection that has not shown the token is a stranger. It is closed after its response or after a
while without a request, and the oldest is closed if there are too many: strangers cannot keep out
clients with the token. A server adds its routes and the format of its errors.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    MutableMapping,
    Sequence,
)
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web, web_app
from aiohttp.typedefs import Handler

from hrm_agent.basics.strict_json import from_json, to_json
from hrm_agent.errors import HrmError

__all__ = [
    "HEALTH",
    "HOLDER",
    "MAX_CONNECTIONS",
    "MAX_REQUEST_BYTES",
    "SECONDS_TO_ASK",
    "BadRequestError",
    "application",
    "body_of",
    "json_answer",
    "listening",
    "one_token",
    "serve_routes",
]

MAX_REQUEST_BYTES = 2 * 1024 * 1024
"""Largest size of a request's body, and of a message on a stream."""
MAX_CONNECTIONS = 1024
"""Connections that have shown the token."""
MAX_STRANGERS = 256
"""Connections that have not shown the token yet."""
SECONDS_TO_ASK = 30.0
"""Seconds for the header of a connection's first request, and for the body of each request."""
SECONDS_BETWEEN = 75.0
"""Seconds that a connection may be idle between two requests."""
HOLDER = web.RequestKey("holder", object)
"""Holder of a request's token, as `holder_of` returned it."""
HEALTH = "health"
"""Name of the one route that is answered without a token."""
_LOG = logging.getLogger(__name__)
_SHOWN = 200
"""Characters of a path in an error's message."""


class BadRequestError(Exception):
    """Request that is answered with an error: HTTP status, message and hint."""

    def __init__(self, status: int, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.status, self.message, self.hint = status, message, hint


class _Strangers:
    """Connections without the token, oldest first. One that closed by itself stays here until its
    timer ends: the timer keeps it in memory, so there are never more timers than `MAX_STRANGERS`.
    """

    def __init__(self) -> None:
        self._timers: dict[Any, asyncio.TimerHandle] = {}

    def __contains__(self, protocol: object) -> bool:
        return protocol in self._timers

    def add(self, protocol: Any, seconds: float) -> None:
        """Add a connection that may stay for `seconds`. Closes the oldest if there are too many."""
        if len(self._timers) >= MAX_STRANGERS:
            self._end(next(iter(self._timers)))
        self._timers[protocol] = asyncio.get_running_loop().call_later(seconds, self._end, protocol)

    def discard(self, protocol: Any) -> None:
        """Remove a connection that has shown the token."""
        if (timer := self._timers.pop(protocol, None)) is not None:
            timer.cancel()

    def _end(self, protocol: Any) -> None:
        self.discard(protocol)
        if protocol.transport is not None:
            protocol.transport.abort()


_STRANGERS = web.AppKey("strangers", _Strangers)


def one_token(token: str) -> Callable[[bytes], object | None]:
    """Return a `holder_of` for `application` that accepts one token. Raises HrmError if the token
    is empty.
    """
    if not token:
        raise HrmError("A server without a token would answer anybody.", "Give it a token.")
    return lambda given: hmac.compare_digest(given, token.encode()) or None


def application(
    holder_of: Callable[[bytes], object | None],
    hosts: Sequence[str],
    request_bytes: int,
    refuse: Callable[[Exception, web.Request], web.StreamResponse],
    *,
    reject: Callable[[web.Request], None] | None = None,
    without_token: Collection[str] = (HEALTH,),
) -> web.Application:
    """Make an application without routes.

    `holder_of`: holder of a token, which becomes `request[HOLDER]` (None if the token is unknown).
    `hosts`: accepted Host headers; any if empty. `refuse`: response to a request whose handler
    raised. `reject`: raises for requests that another site's page could have sent; by default all
    requests of a browser are refused. `without_token`: names of routes that need no token.
    """
    gate = _RequestGate(holder_of, hosts)
    reject = reject or gate.reject_browsers

    @web.middleware
    async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await handler(request)
        except Exception as error:  # the client gets a response to any error
            if isinstance(error, ConnectionError) and (
                request.transport is None or request.transport.is_closing()
            ):
                raise  # there is no client any more
            response = refuse(error, request)
        if request.protocol in request.app[_STRANGERS]:
            response.force_close()
        return response

    @web.middleware
    async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
        reject(request)
        if request.match_info.route.name not in without_token or "Authorization" in request.headers:
            gate.require_token(request)
            request.app[_STRANGERS].discard(request.protocol)
        return await handler(request)

    app = web.Application(middlewares=[answer_errors, admit], client_max_size=request_bytes)
    app[_STRANGERS] = _Strangers()
    return app


def serve_routes(app: web.Application, routes: Sequence[web.RouteDef]) -> None:
    """Answer `routes`, and 404 for all else. `Expect` headers are not answered: aiohttp would
    answer them before any middleware.
    """
    every = (*routes, web.route("*", "/{path:(?s:.*)}", _not_there))
    quiet = {"expect_handler": _say_nothing}
    app.add_routes(
        [web.RouteDef(each.method, each.path, each.handler, each.kwargs | quiet) for each in every]
    )


async def _say_nothing(request: web.Request) -> web.StreamResponse | None:
    del request


async def _not_there(request: web.Request) -> web.StreamResponse:
    raise BadRequestError(404, f"There is no {request.method} {request.path[:_SHOWN]}.")


class _RequestGate:
    """Checks of incoming requests."""

    def __init__(self, holder_of: Callable[[bytes], object | None], hosts: Sequence[str]) -> None:
        self._holder_of = holder_of
        self._hosts = frozenset(hosts)

    def reject_browsers(self, request: web.Request) -> None:
        """Raise for a request that a page in a browser could have sent."""
        if "Origin" in request.headers:
            raise BadRequestError(403, "Requests with an Origin header are refused.")
        if self._hosts and _host(request.headers.get("Host", "")) not in self._hosts:
            raise BadRequestError(
                403, "The Host header names another server.", "Send one of the names it serves."
            )

    def require_token(self, request: web.Request) -> None:
        """Raise for a request without a valid token, else store its holder."""
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        holder = (
            self._holder_of(given.encode("utf-8", "surrogateescape"))
            if scheme == "Bearer"
            else None
        )
        if holder is None:
            raise BadRequestError(
                401, "The token is missing or wrong.", "Send `Authorization: Bearer TOKEN`."
            )
        request[HOLDER] = holder


async def body_of(
    request: web.Request, read: Callable[[bytes], Awaitable[Any]] | None = None
) -> Any:
    """JSON body of a request. `read`: parses the body, if that is not to be done at once."""
    if request.content_type != "application/json":
        raise BadRequestError(415, "The content type has to be application/json.")
    if "Content-Encoding" in request.headers:
        raise BadRequestError(415, "The body has to be sent as it is, without a Content-Encoding.")
    try:
        async with asyncio.timeout(SECONDS_TO_ASK):
            body = await request.read()
        return from_json(body) if read is None else await read(body)
    except TimeoutError:
        raise BadRequestError(
            408, f"The request did not come within {SECONDS_TO_ASK:.0f} s."
        ) from None
    except web.HTTPRequestEntityTooLarge:
        raise BadRequestError(
            413, f"A request has at most {request.client_max_size} bytes."
        ) from None
    except web.RequestPayloadError:
        raise BadRequestError(400, "The body's chunks are malformed.") from None
    except HrmError as error:
        raise BadRequestError(400, error.message, error.hint) from None


def json_answer(record: Any, status: int = 200) -> web.Response:
    return web.Response(
        body=to_json(record).encode(), status=status, content_type="application/json"
    )


@asynccontextmanager
async def listening(
    app: web.Application, listener: socket.socket, drain: Callable[[], Awaitable[object]]
) -> AsyncGenerator[None]:
    """Serve requests inside the block. Leaving it drains the server; `listener` is closed."""
    loop = asyncio.get_running_loop()
    strangers = app[_STRANGERS]
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=1.0,
        keepalive_timeout=SECONDS_BETWEEN,
        # it would unpack a stranger's body too, to a thousand times its size
        auto_decompress=False,
        logger=_Quiet(_LOG),
    )
    await runner.setup()
    server = runner.server
    assert server is not None

    def connection() -> asyncio.Protocol:
        protocol = server()
        room = len(server.connections) < MAX_CONNECTIONS + MAX_STRANGERS
        strangers.add(protocol, SECONDS_TO_ASK if room else 0)
        return protocol

    listening = await loop.create_server(connection, sock=listener)
    try:
        yield
    finally:
        listening.close()
        await drain()
        await runner.cleanup()
        # Clear a cache of aiohttp, which keeps the last thousand handlers of the process, and so
        # all objects that they refer to
        cached = getattr(web_app, "_cached_build_middleware", None)
        if cached is not None:
            cached.cache_clear()


class _Quiet(logging.LoggerAdapter[logging.Logger]):
    """Logger for aiohttp's messages on malformed requests: one debug line, without a traceback."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        error = kwargs.pop("exc_info", None)
        return (
            f"{msg}: {type(error).__name__}" if isinstance(error, BaseException) else msg
        ), kwargs

    def exception(self, msg: object, *args: object, **kwargs: Any) -> None:
        self.debug(msg, *args, **kwargs)


def _host(header: str) -> str:
    """Host name of a Host header: `[::1]:80` -> `::1`."""
    name = header.rpartition(":")[0] if header.rpartition(":")[2].isdecimal() else header
    return name.strip("[]").lower()
