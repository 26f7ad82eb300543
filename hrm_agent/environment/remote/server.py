"""An environment served over HTTP: to trainers on other machines, or to several on this one.

    POST   /v1/run              a submission -> its outcome
    POST   /v1/batch            {"calls": [...]} -> a line of JSON for each as it ends: {"index": 0, "result": {...}}
    POST   /v1/sessions/fork    {"source": ..., "target": ..., "run": ...}
    DELETE /v1/sessions/NAME?run=RUN
    GET    /v1/stream           a WebSocket on which a client sends calls and cancellations and gets outcomes
    GET    /metrics             counts and times, in Prometheus' text format
    GET    /health              what this server is: level of isolation, slots, version; the only one without a token

`RemoteEnvironment` uses the stream: of 64 clients, a request of its own costs a call 700 us of CPU on both sides
together, a message shared with others 100 to 300. The rest is for curl, scrapers and clients in other languages.

Who holds the token may run code in the sandbox, and nothing else; `http_server` says what is refused before that. A
caller that goes away takes its calls along: their slots are free at once. On the way down (`drain`) running calls are
finished, new ones are refused as not begun, which clients submit elsewhere.

Each client may have a token of its own (`clients`): then it reaches nothing of the others' sessions and calls, though
the metrics are everybody's.

Not covered: TLS (put a reverse proxy before it; without one the token crosses the network readable).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import uuid
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager

from hrm_agent import __version__
from hrm_agent.environment.base import Environment, Submission
from hrm_agent.environment.remote.clients import Client, Clients
from hrm_agent.environment.remote.messages import (
    PROTOCOL,
    SERVICE,
    parse_batch,
    parse_fork,
    parse_submission,
    result_record,
)
from hrm_agent.errors import HrmError
from hrm_agent.strict_json import to_json

try:
    from aiohttp import web
    from aiohttp.typedefs import Handler

    from hrm_agent.environment.remote.server_stream import Calls, Stream
    from hrm_agent.http_server import (
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
except ImportError as error:
    raise HrmError("An environment is served with aiohttp.", "pip install 'hrm-agent[service]'") from error

__all__ = ["MAX_REQUEST_BYTES", "Service", "serving"]

_LOG = logging.getLogger(__name__)
_WHILE_DRAINING = ("/health", "/metrics")


class Service:
    """What answers the requests. `serving` puts it behind a socket."""

    def __init__(
        self,
        environment: Environment,
        clients: Clients,
        *,
        hosts: Sequence[str] = (),
        slots: int | None = None,
        request_bytes: int = MAX_REQUEST_BYTES,
    ) -> None:
        """`hosts`: what a request's Host header may say; anything if empty. `slots` is only told to clients."""
        self._calls = Calls(environment)
        self._request_bytes = request_bytes
        self._streams: set[Stream] = set()
        self.about = {
            "service": SERVICE,
            "protocol": PROTOCOL,
            "version": __version__,
            "boot": uuid.uuid4().hex,
            "isolation": environment.isolation,
            "slots": slots,
            "request_bytes": request_bytes,
        }
        """The answer to /health, and the first message on a stream. `boot` is another after every start."""
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
    async def _refuse_while_draining(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._calls.draining and request.path not in _WHILE_DRAINING:
            raise BadRequestError(503, "The server is shutting down.", "Try again later.")
        return await handler(request)

    async def _health(self, request: web.Request) -> web.StreamResponse:
        del request
        return json_answer(self.about)

    async def _run(self, request: web.Request) -> web.StreamResponse:
        with _refused(400):
            submission = parse_submission(await body_of(request))
        return json_answer(result_record(await self._calls.outcome(_client(request), submission)))

    async def _batch(self, request: web.Request) -> web.StreamResponse:
        with _refused(400):
            submissions = parse_batch(await body_of(request))
        response = web.StreamResponse()
        response.content_type = "application/x-ndjson"
        await response.prepare(request)

        async def one(index: int, submission: Submission) -> bytes:
            return f"{to_json({'index': index, **await self._calls.answer(_client(request), submission)})}\n".encode()

        tasks = [asyncio.create_task(one(i, submission)) for i, submission in enumerate(submissions)]
        try:
            for ended in asyncio.as_completed(tasks):
                await response.write(await ended)
        finally:
            for task in tasks:
                task.cancel()
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
            name, run = request.match_info["name"], request.query.get("run", "")
            await self._calls.end_session(_client(request), session=name, run=run)
        return json_answer({})

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        del request
        return web.Response(text=await self._calls.environment.metrics(), content_type="text/plain")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        websocket = web.WebSocketResponse(timeout=2.0, max_msg_size=self._request_bytes, compress=False)
        try:
            await websocket.prepare(request)
        except (web.HTTPBadRequest, UnicodeError):  # UnicodeError: aiohttp fails to quote a header that is not text
            raise BadRequestError(400, "A stream begins with the handshake of a WebSocket.") from None
        stream = Stream(self._calls, _client(request), websocket, request.transport)
        self._streams.add(stream)
        try:
            await stream.serve(self.about)
        finally:
            self._streams.discard(stream)
        return websocket

    async def drain(self, seconds: float) -> None:
        """Refuse new calls, finish the open ones within `seconds`, and send away those who are on streams."""
        await self._calls.drain(seconds)
        await asyncio.gather(*(stream.leave() for stream in self._streams))


def _client(request: web.Request) -> Client:
    client = request[HOLDER]
    assert isinstance(client, Client)
    return client


def _refusal(error: Exception, request: web.Request) -> web.Response:
    """An error of our own is logged here, and its traceback is not told."""
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
    """Serve inside the block; leaving it drains. `listener` is closed, `environment` is not."""
    service = Service(environment, clients, hosts=hosts, slots=slots, request_bytes=request_bytes)
    async with listening(service.app, listener, lambda: service.drain(drain_seconds)):
        yield service
