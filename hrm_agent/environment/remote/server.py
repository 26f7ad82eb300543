"""An environment served over HTTP: to trainers on other machines, or to several on this one.

    POST   /v1/run              a submission -> its outcome
    POST   /v1/batch            {"calls": [...]} -> a line of JSON for each as it ends: {"index": 0, "result": {...}}
    POST   /v1/sessions/fork    {"source": ..., "target": ...}
    DELETE /v1/sessions/NAME
    GET    /v1/stream           a WebSocket on which a client sends calls and cancellations and gets outcomes
    GET    /metrics             counts and times, in Prometheus' text format
    GET    /health              what this server is: level of isolation, slots, version; the only one without a token

`RemoteEnvironment` uses the stream: of 64 clients, a request of its own costs a call 700 us of CPU on both sides
together, a message shared with others 100 to 300. The rest is for curl, scrapers and clients in other languages.

Who holds the token may run code in the sandbox, and nothing else; `asking` says what is refused before that. A caller
that goes away takes its calls along: their slots are free at once. On the way down (`drain`) running calls are
finished, new ones are refused as not begun, which clients submit elsewhere.

Not covered: TLS (put a reverse proxy before it; without one the token crosses the network readable), several tenants
(every holder of the token can name every session, though sessions belong to runs).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from hrm_agent import __version__
from hrm_agent.environment.base import Environment, Submission
from hrm_agent.environment.remote.messages import (
    PROTOCOL,
    SERVICE,
    parse_submission,
    read_object,
    result_record,
    to_json,
)
from hrm_agent.errors import HrmError

try:
    from aiohttp import web

    from hrm_agent.environment.remote.http_guard import (
        MAX_REQUEST_BYTES,
        BadRequestError,
        RequestGate,
        body_of,
        json_answer,
        listening,
    )
    from hrm_agent.environment.remote.server_stream import FORK, Calls, Stream, as_list
except ImportError as error:
    raise HrmError("An environment is served with aiohttp.", "pip install 'hrm-agent[service]'") from error

__all__ = ["MAX_REQUEST_BYTES", "Service", "serving"]

_LOG = logging.getLogger(__name__)

Handler = Callable[[web.BaseRequest], Coroutine[Any, Any, web.StreamResponse]]


class Service:
    """What answers the requests. `serving` puts it behind a socket."""

    def __init__(
        self,
        environment: Environment,
        token: str,
        *,
        hosts: Sequence[str] = (),
        slots: int | None = None,
        request_bytes: int = MAX_REQUEST_BYTES,
    ) -> None:
        """`hosts`: what a request's Host header may say; anything if empty. `slots` is only told to clients."""
        self._door = RequestGate(token, hosts)
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
        self._routes: dict[tuple[str, str], Handler] = {
            ("POST", "/v1/run"): self._run,
            ("POST", "/v1/batch"): self._batch,
            ("POST", "/v1/sessions/fork"): self._fork,
            ("GET", "/v1/stream"): self._stream,
            ("GET", "/metrics"): self._metrics,
        }

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request; an error of our own is logged here, and its traceback is not told."""
        try:
            return await self._dispatch(request)
        except BadRequestError as refused:
            return json_answer({"error": refused.message, "hint": refused.hint}, refused.status)
        except web.HTTPRequestEntityTooLarge:
            return json_answer({"error": f"A request has at most {self._request_bytes} bytes.", "hint": ""}, 413)
        except HrmError as error:
            return json_answer({"error": error.message, "hint": error.hint}, 503)
        except Exception:
            _LOG.exception("request failed: %s %s", request.method, request.path)
            return json_answer({"error": "The server failed.", "hint": "Its log says where."}, 500)

    async def _dispatch(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        self._door.refuse_pages(request)
        if path == "/health" and "Authorization" not in request.headers:
            return json_answer(self.about)
        self._door.refuse_strangers(request)
        if path == "/health":
            return json_answer(self.about)
        route = self._routes.get((request.method, path))
        if route is None and request.method == "DELETE" and path.startswith("/v1/sessions/"):
            route = self._end
        if route is None:
            raise BadRequestError(404, f"There is no {request.method} {path}.")
        if self._calls.draining and path != "/metrics":
            raise BadRequestError(503, "The server is going down.", "Try again later.")
        return await route(request)

    async def _run(self, request: web.BaseRequest) -> web.StreamResponse:
        with _read():
            submission = parse_submission(await body_of(request))
        return json_answer(result_record(await self._calls.outcome(submission)))

    async def _batch(self, request: web.BaseRequest) -> web.StreamResponse:
        with _read():
            calls = read_object(await body_of(request), "", {"calls": as_list}, "calls")["calls"]
            submissions = [parse_submission(call, f"calls[{i}]") for i, call in enumerate(calls)]
        response = web.StreamResponse()
        response.content_type = "application/x-ndjson"
        await response.prepare(request)

        async def one(index: int, submission: Submission) -> bytes:
            return f"{to_json({'index': index, **await self._calls.answer(submission)})}\n".encode()

        tasks = [asyncio.create_task(one(i, submission)) for i, submission in enumerate(submissions)]
        try:
            for ended in asyncio.as_completed(tasks):
                await response.write(await ended)
        finally:
            for task in tasks:
                task.cancel()
        await response.write_eof()
        return response

    async def _fork(self, request: web.BaseRequest) -> web.StreamResponse:
        with _read():
            names = read_object(await body_of(request), "", FORK, "source", "target")
        try:
            await self._calls.environment.fork_session(names["source"], names["target"])
        except HrmError as error:
            raise BadRequestError(409, error.message, error.hint) from None
        return json_answer({})

    async def _end(self, request: web.BaseRequest) -> web.StreamResponse:
        await self._calls.environment.end_session(request.path.removeprefix("/v1/sessions/"))
        return json_answer({})

    async def _metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text=await self._calls.environment.metrics(), content_type="text/plain")

    async def _stream(self, request: web.BaseRequest) -> web.StreamResponse:
        websocket = web.WebSocketResponse(timeout=2.0, max_msg_size=self._request_bytes, compress=False)
        await websocket.prepare(request)
        stream = Stream(self._calls, websocket)
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


@contextmanager
def _read() -> Generator[None]:
    """Around the reading of a request: what is wrong with it is the caller's to mend."""
    try:
        yield
    except HrmError as error:
        raise BadRequestError(400, error.message, error.hint) from None


@asynccontextmanager
async def serving(
    environment: Environment,
    token: str,
    listener: socket.socket,
    *,
    hosts: Sequence[str] = (),
    slots: int | None = None,
    drain_seconds: float = 30.0,
    request_bytes: int = MAX_REQUEST_BYTES,
) -> AsyncGenerator[Service]:
    """Serve inside the block; leaving it drains. `listener` is closed, `environment` is not."""
    service = Service(environment, token, hosts=hosts, slots=slots, request_bytes=request_bytes)
    async with listening(service.handle, listener, lambda: service.drain(drain_seconds), request_bytes):
        yield service
