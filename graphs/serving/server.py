"""OpenAI's chat completions over HTTP, with graphs for models.

    POST /v1/chat/completions   a conversation -> the answer of a run, whole or as server-sent events
    GET  /v1/models             the graphs that are served, as OpenAI lists models; /v1/models/NAME is one of them
    GET  /health                that this is such a server, and its version; the only one without a token

Who holds the token may have the served graphs run, with the server's policy, and read back threads whose names are
known; so it is compared in constant time, the server listens on loopback unless told otherwise, and what a browser
could be made to send is refused (an Origin, a foreign Host, any content type but JSON). Requests are bounded in bytes
and seconds, connections and runs in number: one run too many is answered with 429, which OpenAI's clients try again.

A client that goes away takes its run along. On the way down (`drain`) runs are finished, new ones are refused; those
that are cut off stay on record as interrupted, and a request that names their thread goes on with them.

A stream carries the content of the answer (`answers.visible`), and a comment line for each node that has ended, which
clients skip and people at `curl -N` can read. Errors before its first event are HTTP errors; later ones are an event.

Not covered: TLS (a reverse proxy), several tenants (one token, one store).
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import socket
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import unquote

from graphs.episode import Episode, EpisodeRunner
from graphs.serving.answers import chunk, completion, error_body, model_card, usage_chunk
from graphs.serving.requests import Asked, RefusedError, read_request
from graphs.serving.runs import Chats, Ear
from hrm_agent import __version__
from hrm_agent.environment.served.wire import from_json, to_json
from hrm_agent.errors import ConfigError, HrmError, ModelError, StoreFullError
from hrm_agent.trajectory import RunStatus, Trajectory

try:
    from aiohttp import web
except ImportError as error:
    raise HrmError("Graphs are served with aiohttp.", "pip install 'hrm-agent[service]'") from error

__all__ = ["CONCURRENCY", "MAX_REQUEST_BYTES", "SERVICE", "THREAD_HEADER", "ChatService", "serving"]

SERVICE = "hrm-agent serve"
THREAD_HEADER = "X-HRM-Agent-Thread"
"""Names the thread of a run: in every answer, and in a request that may be sent again."""
CONCURRENCY = 16
MAX_REQUEST_BYTES = 2 * 1024 * 1024
MAX_CONNECTIONS = 1024
SECONDS_TO_ASK = 30.0
"""A connection's first request has to have its header within, each request its body."""
SECONDS_BETWEEN_SIGNS = 15.0
"""So long a stream is silent at most."""
SECONDS_TO_REFUSE = 1.0
"""So long a stream waits with its HTTP status for something to happen."""
SECONDS_BETWEEN_EVENTS = 0.02
_THREAD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_LOG = logging.getLogger(__name__)
_STATUS: tuple[tuple[type[HrmError], int], ...] = ((ConfigError, 400), (ModelError, 502), (StoreFullError, 507))


class ChatService:
    """What answers the requests. `serving` puts it behind a socket."""

    def __init__(
        self,
        runner: EpisodeRunner,
        graphs: Sequence[str],
        token: str,
        *,
        hosts: Sequence[str] = (),
        concurrency: int = CONCURRENCY,
        request_bytes: int = MAX_REQUEST_BYTES,
    ) -> None:
        """`hosts`: what a request's Host header may say; anything if empty."""
        if not token:
            raise HrmError("A server without a token would answer anybody.", "Give it a token.")
        self.chats = Chats(runner, graphs, concurrency)
        self.request_bytes = request_bytes
        self._token = f"Bearer {token}".encode()
        self._hosts = frozenset(hosts)
        self._started = time.time()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request; an error of our own is logged here, and its traceback is not told."""
        try:
            return await self._dispatch(request)
        except Exception as error:
            return _error(self._refusal(error, request))

    def _refusal(self, error: Exception, request: web.BaseRequest) -> RefusedError:
        match error:
            case RefusedError():
                return error
            case web.HTTPRequestEntityTooLarge():
                return RefusedError(413, f"A request has at most {self.request_bytes} bytes.")
            case HrmError():
                status = next((status for kind, status in _STATUS if isinstance(error, kind)), 503)
                return RefusedError(status, f"{error.message} {error.hint}".strip())
            case _:
                _LOG.error("request failed: %s %s", request.method, request.path, exc_info=error)
                return RefusedError(500, "The server failed; its log says where.")

    async def _dispatch(self, request: web.BaseRequest) -> web.StreamResponse:
        headers, path = request.headers, request.path
        if "Origin" in headers or (self._hosts and _host(headers.get("Host", "")) not in self._hosts):
            raise RefusedError(403, "Pages in a browser are not served.")
        given = headers.get("Authorization")
        if given is None and path == "/health" and request.method == "GET":
            return _answer({"service": SERVICE, "version": __version__, "status": "ok"})
        if not hmac.compare_digest((given or "").encode("utf-8", "surrogateescape"), self._token):
            raise RefusedError(401, "The token is missing or wrong.", code="invalid_api_key")
        match request.method, path:
            case "POST", "/v1/chat/completions":
                return await self._complete(request)
            case "GET", "/v1/models":
                return _answer({"object": "list", "data": [model_card(name, self._started) for name in self._graphs]})
            case "GET", "/health":
                return _answer({"service": SERVICE, "version": __version__, "status": "ok"})
            case "GET", _ if path.startswith("/v1/models/"):
                return self._model(unquote(path.removeprefix("/v1/models/")))
            case _:
                raise RefusedError(404, f"There is no {request.method} {path[:200]}.", code="unknown_url")

    @property
    def _graphs(self) -> Sequence[str]:
        return list(self.chats.graphs)

    def _model(self, name: str) -> web.Response:
        if name not in self.chats.graphs:
            raise RefusedError(404, "No model of that name.", code="model_not_found", param="model")
        return _answer(model_card(name, self._started))

    async def _complete(self, request: web.BaseRequest) -> web.StreamResponse:
        asked, thread = read_request(await self._body(request)), _thread_of(request)
        with self.chats.admitted(asked, thread) as episode:
            ear = Ear(self.chats.graphs[asked.model], asked.stop)
            if asked.stream:
                return await self._stream(request, asked, episode, ear)
            ended = _unless_failed(await self.chats.run(asked, episode, ear, lasting=thread is not None))
            answer = _answer(completion(ended, ear.content(ended)))
            answer.headers[THREAD_HEADER] = episode.thread_id
            return answer

    async def _body(self, request: web.BaseRequest) -> Any:
        if request.content_type != "application/json":
            raise RefusedError(415, "The content type has to be application/json.")
        try:
            async with asyncio.timeout(SECONDS_TO_ASK):
                return from_json(await request.read())
        except TimeoutError:
            raise RefusedError(408, f"The request did not come within {SECONDS_TO_ASK:.0f} s.") from None
        except HrmError as error:
            raise RefusedError(400, error.message) from None

    async def _stream(self, request: web.BaseRequest, asked: Asked, episode: Episode, ear: Ear) -> web.StreamResponse:
        lasting = THREAD_HEADER in request.headers
        run = asyncio.create_task(self.chats.run(asked, episode, ear, lasting=lasting))
        run.add_done_callback(lambda _: ear.changed.set())
        try:
            await _wait(ear, SECONDS_TO_REFUSE)
            if run.done() and run.exception() is not None:
                run.result()
            events = _Events(request, asked, episode)
            await events.begin()
            try:
                while not run.done():
                    await events.tell(ear)
                    await _wait(ear, SECONDS_BETWEEN_SIGNS)
                    await asyncio.sleep(SECONDS_BETWEEN_EVENTS)  # several tokens make one event
                await events.end(ear, _unless_failed(run.result()))
            except ConnectionError:  # the client is gone
                pass
            except Exception as error:
                await events.fail(self._refusal(error, request))
            return events.response
        finally:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)


class _Events:
    """A stream of server-sent events."""

    def __init__(self, request: web.BaseRequest, asked: Asked, episode: Episode) -> None:
        self._request, self._asked, self._episode = request, asked, episode
        self._created = time.time()
        self.response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",
                THREAD_HEADER: episode.thread_id,
            }
        )

    async def begin(self) -> None:
        await self.response.prepare(self._request)
        await self._send({"role": "assistant", "content": ""})

    async def tell(self, ear: Ear) -> None:
        """What is new; a comment if nothing is."""
        nodes, news = ear.nodes(), ear.news()
        if nodes or not news:
            await self.response.write("".join(f": {node}\n\n" for node in nodes or [""]).encode())
        if news:
            await self._send({"content": news})

    async def end(self, ear: Ear, ended: Trajectory) -> None:
        if rest := ear.rest(ended):
            await self._send({"content": rest})
        await self._send({}, ended)
        if self._asked.include_usage:
            await self._event(usage_chunk(ended, self._created))
        await self.response.write(b"data: [DONE]\n\n")
        await self.response.write_eof()

    async def fail(self, refused: RefusedError) -> None:
        """An error after the first event has no HTTP status any more."""
        with suppress(ConnectionError):
            await self._event(_body_of(refused))
            await self.response.write_eof()

    async def _send(self, delta: dict[str, Any], ended: Trajectory | None = None) -> None:
        identity = self._episode.trajectory_id
        await self._event(chunk(identity, self._episode.graph, self._created, delta, ended))

    async def _event(self, record: dict[str, Any]) -> None:
        await self.response.write(f"data: {to_json(record)}\n\n".encode())


async def _wait(ear: Ear, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await ear.changed.wait()
    ear.changed.clear()


def _unless_failed(ended: Trajectory) -> Trajectory:
    if ended.status in (RunStatus.FAILED, RunStatus.ABORTED):
        why = ended.error or "it was aborted"
        raise RefusedError(500, f"The run {ended.thread_id} failed: {why}.", code="run_failed")
    return ended


def _thread_of(request: web.BaseRequest) -> str | None:
    given = request.headers.get(THREAD_HEADER)
    if given is not None and not _THREAD.fullmatch(given):
        raise RefusedError(400, "A thread's name has up to 128 letters, digits and `._:-`.", param=THREAD_HEADER)
    return given


def _body_of(refused: RefusedError) -> dict[str, Any]:
    return error_body(refused.status, refused.message, refused.code, refused.param)


def _error(refused: RefusedError) -> web.Response:
    answer = _answer(_body_of(refused), refused.status)
    if refused.status in (429, 503):
        answer.headers["Retry-After"] = "1"
    return answer


def _answer(record: Any, status: int = 200) -> web.Response:
    return web.Response(body=to_json(record).encode(), status=status, content_type="application/json")


def _host(header: str) -> str:
    """`[::1]:80` -> `::1`."""
    name = header.rpartition(":")[0] if header.rpartition(":")[2].isdecimal() else header
    return name.strip("[]").lower()


@asynccontextmanager
async def serving(
    service: ChatService,
    listener: socket.socket,
    *,
    drain_seconds: float = 30.0,
) -> AsyncGenerator[None]:
    """Serve inside the block; leaving it drains. `listener` is closed."""
    loop = asyncio.get_running_loop()
    silent: set[Any] = set()

    def request(message: Any, payload: Any, protocol: Any, writer: Any, task: asyncio.Task[None]) -> web.BaseRequest:
        silent.discard(protocol)
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=service.request_bytes)

    def connection() -> asyncio.Protocol:
        protocol = server()
        silent.add(protocol)
        room = len(server.connections) < MAX_CONNECTIONS
        loop.call_later(SECONDS_TO_ASK if room else 0, _drop_silent, protocol, silent)
        return protocol

    server = web.Server(service.handle, handler_cancellation=True, request_factory=request, access_log=None)
    listening = await loop.create_server(connection, sock=listener)
    try:
        yield
    finally:
        listening.close()
        await service.chats.drain(drain_seconds)
        server.pre_shutdown()
        await server.shutdown(1.0)


def _drop_silent(protocol: Any, silent: set[Any]) -> None:
    """End a connection on which nothing was asked: aiohttp itself waits for a first request without end."""
    if protocol in silent:
        silent.discard(protocol)
        if protocol.transport is not None:
            protocol.transport.abort()
