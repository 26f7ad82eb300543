"""Shared parts of the HTTP servers: an aiohttp application with limits, and middlewares for
authentication and errors.

A request needs the token, and the time until a refusal reveals nothing about the token. Requests
that a page of another site could make a browser send are refused: requests with an Origin header, a
foreign Host, or a body that is not JSON. A server with pages of its own defines what these pages
may send (`hrm_agent.viewer.security`). The bytes and the seconds of a request are limited.

A connection that has not shown the token is a stranger. It is closed after its response, or after a
while without a request. If there are too many strangers, the oldest is closed, so that strangers
cannot keep out clients with the token. A server adds its routes and the format of its errors.
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
"""Maximum size in bytes of a request's body, and of a message on a stream."""
MAX_CONNECTIONS = 1024
"""Maximum number of connections that have shown the token."""
MAX_STRANGERS = 256
"""Maximum number of connections that have not shown the token yet."""
SECONDS_TO_ASK = 30.0
"""Time limit in seconds for the header of a connection's first request, and for the body of each
request.
"""
SECONDS_BETWEEN = 75.0
"""Seconds that a connection may be idle between two requests."""
HOLDER = web.RequestKey("holder", object)
"""Key of a request for the holder of its token, which `holder_of` has returned."""
HEALTH = "health"
"""Name of the one route that is answered without a token."""
_LOG = logging.getLogger(__name__)
_SHOWN = 200
"""Maximum number of characters of a path in an error's message."""


class BadRequestError(Exception):
    """Request that is answered with an error: HTTP status, message and hint."""

    def __init__(self, status: int, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.hint = hint


class _Strangers:
    """Connections that have not shown the token, oldest first. A connection that closed by itself
    stays in the list until its timer ends. The timer keeps it in memory anyway, and by this there
    are never more timers than `MAX_STRANGERS`.
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
        raise HrmError("The token is empty, so the server would answer anybody.", "Give a token.")
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

    `holder_of`: returns the holder of a token, which becomes `request[HOLDER]` (None if the token
    is unknown). `hosts`: accepted Host headers (empty: all are accepted). `refuse`: makes the
    response to a request whose handler raised. `reject`: raises for requests that another site's
    page could have sent (None: all requests of a browser are refused). `without_token`: names of
    routes that need no token.
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
                raise  # the client has disconnected
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
    """Serve `routes`, and answer 404 for all other paths. `Expect` headers are ignored, since
    aiohttp would answer them before any middleware.
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
            raise BadRequestError(
                403, "The request has an Origin header, as requests of a browser have."
            )
        if self._hosts and _host(request.headers.get("Host", "")) not in self._hosts:
            raise BadRequestError(
                403, "The Host header names another server.", "Use one of this server's names."
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
    """JSON body of a request. `read`: parses the body (None: it is parsed at once)."""
    if request.content_type != "application/json":
        raise BadRequestError(415, "The content type of the body is not application/json.")
    if "Content-Encoding" in request.headers:
        raise BadRequestError(415, "The body has a Content-Encoding: send it unencoded.")
    try:
        async with asyncio.timeout(SECONDS_TO_ASK):
            body = await request.read()
        return from_json(body) if read is None else await read(body)
    except TimeoutError:
        raise BadRequestError(
            408, f"The request's body did not arrive within {SECONDS_TO_ASK:.0f} s."
        ) from None
    except web.HTTPRequestEntityTooLarge:
        raise BadRequestError(
            413, f"The request's body is larger than {request.client_max_size} bytes."
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
    """Serve requests inside the block. When the block ends, `listener` is closed and the server is
    drained.
    """
    loop = asyncio.get_running_loop()
    strangers = app[_STRANGERS]
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=1.0,
        keepalive_timeout=SECONDS_BETWEEN,
        # decompression could blow up a stranger's body to a thousand times its size
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
