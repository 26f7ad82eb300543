"""Environment served over HTTP, to trainers on other machines or to several on this one.

    POST   /v1/run              a submission -> its outcome
    POST   /v1/batch            {"calls": [...]} -> one JSON line per call as it ends: {"index": 0, "result": {...}}
    POST   /v1/sessions/fork    {"source": ..., "target": ..., "run": ...}
    DELETE /v1/sessions/NAME?run=RUN
    GET    /v1/stream           a WebSocket on which a client sends calls and cancellations and gets outcomes
    GET    /metrics             counts and times, in Prometheus' text format
    GET    /health              description of the server: isolation level, slots, version; 503 and the reason if a
                                loop that serves all calls does not respond; the only route without a token

`RemoteEnvironment` uses the stream. With 64 clients, a request per call costs 700 us of CPU time,
client and server together; a shared message costs 100 to 300 us per call. The other routes are for
curl, scrapers and clients in other languages.

A token allows running code in the sandbox, and nothing else. `http_server` describes which requests
are refused before their token is checked. If a caller disconnects, its calls end and their slots
are free at once. During shutdown (`drain`) running calls are finished. New calls are refused as not
begun, so clients can submit them to another server.

Each client may have its own token (`clients`). A client has no access to sessions and calls of
other clients, but all clients share the metrics.

The server has no TLS. Put it behind a reverse proxy with TLS: without one, the token crosses the
network unencrypted.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import uuid
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager

from hrm_agent import __version__
from hrm_agent.basics.strict_json import to_json
from hrm_agent.environment.base import Environment
from hrm_agent.environment.remote.clients import Client, Clients
from hrm_agent.environment.remote.messages import (
    PROTOCOL,
    SERVICE,
    parse_batch,
    parse_fork,
    parse_submission,
    result_record,
)
from hrm_agent.errors import HrmError, to_install

try:
    from aiohttp import web
    from aiohttp.typedefs import Handler

    from hrm_agent.basics.http_server import (
        HEALTH,
        HOLDER,
        MAX_REQUEST_BYTES,
        BadRequestError,
        application,
        body_of,
        json_answer,
        listening,
        serve_routes,
    )
    from hrm_agent.environment.remote.calls import Calls
    from hrm_agent.environment.remote.exchange import Exchange
    from hrm_agent.environment.remote.server_stream import Stream
except ImportError as error:
    raise HrmError(
        "aiohttp is not installed, and serving an environment needs it.",
        f"Run `{to_install('service')}`.",
    ) from error

__all__ = ["MAX_REQUEST_BYTES", "Service", "serving"]

_LOG = logging.getLogger(__name__)
_WHILE_DRAINING = ("/health", "/metrics")
_AT_ONCE = 64
"""Number of calls of a batch that are accepted before other tasks get a turn."""
_HEALTH_SECONDS = 3.0
"""Seconds within which each loop that serves all calls has to respond."""
_HEALTH_KEPT_SECONDS = 1.0
"""Seconds for which the result of one check answers all requests to /health."""


class Service:
    """HTTP application of a served environment. `serving` binds it to a socket."""

    def __init__(
        self,
        environment: Environment,
        clients: Clients,
        *,
        hosts: Sequence[str] = (),
        slots: int | None = None,
        request_bytes: int = MAX_REQUEST_BYTES,
    ) -> None:
        """Make the application. `hosts`: accepted Host headers (empty: all are accepted). `slots`:
        number that is reported to clients.
        """
        self._calls = Calls(environment)
        self._request_bytes = request_bytes
        self._streams: set[Stream] = set()
        self._checking: asyncio.Task[str] | None = None
        self._checked_until = 0.0
        self.about = {
            "service": SERVICE,
            "protocol": PROTOCOL,
            "version": __version__,
            "boot": uuid.uuid4().hex,
            "isolation": environment.isolation,
            "slots": slots,
            "request_bytes": request_bytes,
        }
        """Response to /health, and first message of a stream. `boot` is different after every
        start.
        """
        self.app = application(clients.find, hosts, request_bytes, _refusal)
        self.app.middlewares.append(self._refuse_while_draining)
        serve_routes(
            self.app,
            [
                web.route("*", "/health", self._health, name=HEALTH),
                web.get("/metrics", self._metrics, allow_head=False),
                web.post("/v1/run", self._run),
                web.post("/v1/batch", self._batch),
                web.post("/v1/sessions/fork", self._fork),
                web.delete("/v1/sessions/{name:(?s:.*)}", self._end),
                web.get("/v1/stream", self._stream, allow_head=False),
            ],
        )

    @web.middleware
    async def _refuse_while_draining(
        self, request: web.Request, handler: Handler
    ) -> web.StreamResponse:
        if self._calls.draining and request.path not in _WHILE_DRAINING:
            raise BadRequestError(503, "The server is shutting down.", "Try again later.")
        return await handler(request)

    async def _health(self, request: web.Request) -> web.StreamResponse:
        """Check the loops that serve all calls, at most once per `_HEALTH_KEPT_SECONDS`."""
        del request
        if self._checking is None or (
            self._checking.done() and time.monotonic() > self._checked_until
        ):
            self._checking = asyncio.create_task(self._check())
        why = await asyncio.shield(self._checking)
        if not why:
            return json_answer(self.about)
        hint = "See the server's log. If this lasts, restart the server."
        return json_answer(
            {**self.about, "error": f"The environment does not serve: {why}.", "hint": hint}, 503
        )

    async def _check(self) -> str:
        try:
            return await self._calls.environment.check_health(_HEALTH_SECONDS)
        except Exception as error:
            _LOG.exception("the health check of the environment failed")
            return f"{type(error).__name__}: {error}"
        finally:
            self._checked_until = time.monotonic() + _HEALTH_KEPT_SECONDS

    async def _run(self, request: web.Request) -> web.StreamResponse:
        with _refused(400):
            submission = parse_submission(await body_of(request, _client(request).read))
        return json_answer(result_record(await self._calls.outcome(_client(request), submission)))

    async def _batch(self, request: web.Request) -> web.StreamResponse:
        client = _client(request)
        with _refused(400):
            submissions = await parse_batch(await body_of(request, client.read))
        response = web.StreamResponse()
        response.content_type = "application/x-ndjson"
        await response.prepare(request)
        exchange = Exchange(
            self._calls, client, lambda index, answer: f"{to_json({'index': index, **answer})}\n"
        )
        if request.transport is not None:
            exchange.abort = request.transport.abort
        try:
            for index, submission in enumerate(submissions):
                exchange.take_call(index, submission)
                if index % _AT_ONCE == _AT_ONCE - 1:
                    await asyncio.sleep(0)
            while not exchange.is_over:
                await exchange.ready.wait()
                exchange.ready.clear()
                while line := exchange.next():
                    await response.write(line.encode())
                    exchange.was_read(len(line))
        finally:
            exchange.close()
        await response.write_eof()
        return response

    async def _fork(self, request: web.Request) -> web.StreamResponse:
        with _refused(400):
            wanted = parse_fork(await body_of(request))
        with _refused(409):
            await self._calls.fork_session(_client(request), **wanted)
        return json_answer({})

    async def _end(self, request: web.Request) -> web.StreamResponse:
        with _refused(409):
            name = request.match_info["name"]
            run = request.query.get("run", "")
            await self._calls.end_session(_client(request), session=name, run=run)
        return json_answer({})

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        del request
        return web.Response(text=await self._calls.environment.metrics(), content_type="text/plain")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        websocket = web.WebSocketResponse(
            timeout=2.0, max_msg_size=self._request_bytes, compress=False
        )
        try:
            await websocket.prepare(request)
        # aiohttp raises UnicodeError if it has to quote a header that is not text
        except (web.HTTPBadRequest, UnicodeError):
            raise BadRequestError(
                400, "The request is not the handshake of a WebSocket, with which a stream begins."
            ) from None
        stream = Stream(self._calls, _client(request), websocket, request.transport)
        self._streams.add(stream)
        try:
            await stream.serve(self.about)
        finally:
            self._streams.discard(stream)
        return websocket

    async def drain(self, seconds: float) -> None:
        """Refuse new calls, finish the open ones within `seconds`, and close all streams."""
        await self._calls.drain(seconds)
        await asyncio.gather(*(stream.leave() for stream in self._streams))


def _client(request: web.Request) -> Client:
    client = request[HOLDER]
    assert isinstance(client, Client)
    return client


def _refusal(error: Exception, request: web.Request) -> web.Response:
    """Error response. An unexpected error is logged, and the client does not get its traceback."""
    match error:
        case BadRequestError():
            refused = error
        case HrmError():
            refused = BadRequestError(503, error.message, error.hint)
        case _:
            _LOG.error("request failed: %s %s", request.method, request.path, exc_info=error)
            refused = BadRequestError(500, "The server failed.", "See its log.")
    return json_answer({"error": refused.message, "hint": refused.hint}, refused.status)


@contextmanager
def _refused(status: int) -> Generator[None]:
    """Turn an HrmError inside the block into an HTTP error with this status."""
    try:
        yield
    except HrmError as error:
        raise BadRequestError(status, error.message, error.hint) from None


@asynccontextmanager
async def serving(
    environment: Environment,
    clients: Clients,
    listener: socket.socket,
    *,
    hosts: Sequence[str] = (),
    slots: int | None = None,
    drain_seconds: float = 30.0,
    request_bytes: int = MAX_REQUEST_BYTES,
) -> AsyncGenerator[Service]:
    """Serve inside the block. When the block ends, the server is drained and `listener` is closed.
    `environment` stays open.
    """
    service = Service(environment, clients, hosts=hosts, slots=slots, request_bytes=request_bytes)
    async with listening(service.app, listener, lambda: service.drain(drain_seconds)):
        yield service
