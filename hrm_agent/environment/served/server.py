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

Who holds the token may run code in the sandbox, and nothing else; so the token is compared in constant time, the server
listens on loopback unless told otherwise, and what a browser could be made to send is refused (an Origin, a foreign
Host, any content type but JSON). A caller that goes away takes its calls along: their slots are free at once. On the
way down (`drain`) running calls are finished, new ones are refused as not begun, which clients submit elsewhere.

Not covered: TLS (put a reverse proxy before it; without one the token crosses the network readable), several tenants
(every holder of the token can name every session, though sessions belong to runs), connections that are opened and
never used (bounded by the process's descriptors only).
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from hrm_agent import __version__
from hrm_agent.environment.result import Environment, Submission
from hrm_agent.environment.served.wire import (
    PROTOCOL,
    SERVICE,
    from_json,
    parse_submission,
    read_object,
    result_record,
    to_json,
)
from hrm_agent.errors import HrmError

try:
    from aiohttp import web

    from hrm_agent.environment.served.stream import FORK, Calls, Stream, as_list
except ImportError as error:
    raise HrmError("An environment is served with aiohttp.", "pip install 'hrm-agent[service]'") from error

__all__ = ["MAX_REQUEST_BYTES", "Service", "serving"]

MAX_REQUEST_BYTES = 2 * 1024 * 1024
"""Of a request's body, and of a message on a stream."""
_BODY_SECONDS = 60.0
"""A request's body has to come within."""
_LOG = logging.getLogger(__name__)

Handler = Callable[[web.BaseRequest], Coroutine[Any, Any, web.StreamResponse]]


class _RefusedError(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.status, self.message, self.hint = status, message, hint


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
        if not token:
            raise HrmError("A server without a token would run anybody's code.", "Give it a token.")
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
        self._token = f"Bearer {token}".encode()
        self._hosts = frozenset(hosts)
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
        except _RefusedError as refused:
            return _answer({"error": refused.message, "hint": refused.hint}, refused.status)
        except web.HTTPRequestEntityTooLarge:
            return _answer({"error": f"A request has at most {self._request_bytes} bytes.", "hint": ""}, 413)
        except HrmError as error:
            return _answer({"error": error.message, "hint": error.hint}, 503)
        except Exception:
            _LOG.exception("request failed: %s %s", request.method, request.path)
            return _answer({"error": "The server failed.", "hint": "Its log says where."}, 500)

    async def _dispatch(self, request: web.BaseRequest) -> web.StreamResponse:
        headers, path = request.headers, request.path
        if "Origin" in headers or (self._hosts and _host(headers.get("Host", "")) not in self._hosts):
            raise _RefusedError(403, "Pages in a browser are not served.")
        given = headers.get("Authorization")
        if given is None and path == "/health":
            return _answer(self.about)
        if not hmac.compare_digest((given or "").encode("utf-8", "surrogateescape"), self._token):
            raise _RefusedError(401, "The token is missing or wrong.", "Send `Authorization: Bearer TOKEN`.")
        if path == "/health":
            return _answer(self.about)
        route = self._routes.get((request.method, path))
        if route is None and request.method == "DELETE" and path.startswith("/v1/sessions/"):
            route = self._end
        if route is None:
            raise _RefusedError(404, f"There is no {request.method} {path}.")
        if self._calls.draining and path != "/metrics":
            raise _RefusedError(503, "The server is going down.", "Try again later.")
        return await route(request)

    async def _body(self, request: web.BaseRequest) -> Any:
        if request.content_type != "application/json":
            raise _RefusedError(415, "The content type has to be application/json.")
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                return from_json(await request.read())
        except TimeoutError:
            raise _RefusedError(408, f"The request did not come within {_BODY_SECONDS:.0f} s.") from None
        except HrmError as error:
            raise _RefusedError(400, error.message, error.hint) from None

    async def _run(self, request: web.BaseRequest) -> web.StreamResponse:
        with _read():
            submission = parse_submission(await self._body(request))
        return _answer(result_record(await self._calls.outcome(submission)))

    async def _batch(self, request: web.BaseRequest) -> web.StreamResponse:
        with _read():
            calls = read_object(await self._body(request), "", {"calls": as_list}, "calls")["calls"]
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
            names = read_object(await self._body(request), "", FORK, "source", "target")
        try:
            await self._calls.environment.fork_session(names["source"], names["target"])
        except HrmError as error:
            raise _RefusedError(409, error.message, error.hint) from None
        return _answer({})

    async def _end(self, request: web.BaseRequest) -> web.StreamResponse:
        await self._calls.environment.end_session(request.path.removeprefix("/v1/sessions/"))
        return _answer({})

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
        raise _RefusedError(400, error.message, error.hint) from None


def _answer(record: Any, status: int = 200) -> web.Response:
    return web.Response(body=to_json(record).encode(), status=status, content_type="application/json")


def _host(header: str) -> str:
    """`[::1]:80` -> `::1`."""
    name = header.rpartition(":")[0] if header.rpartition(":")[2].isdecimal() else header
    return name.strip("[]").lower()


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
    loop = asyncio.get_running_loop()

    def request(message: Any, payload: Any, protocol: Any, writer: Any, task: asyncio.Task[None]) -> web.BaseRequest:
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=request_bytes)

    server = web.Server(service.handle, handler_cancellation=True, request_factory=request, access_log=None)
    listening = await loop.create_server(server, sock=listener)
    try:
        yield service
    finally:
        listening.close()
        await service.drain(drain_seconds)
        server.pre_shutdown()
        await server.shutdown(1.0)
