"""OpenAI's chat completions over HTTP, with graphs in place of models.

    POST /v1/chat/completions   a conversation -> the answer of a run, whole or streamed
    GET  /v1/models             the served graphs, as OpenAI lists models; /v1/models/NAME: one
    POST /v1/feedback           feedback on a run (`hrm_agent.runtime.serving.feedback`)
    GET  /health                service and version, or 503 if the store does not commit;
                                the only one without a token

A client with the token can run the served graphs, with the server's policy, and read threads whose
names are known. So the token is compared in constant time, the server listens on loopback by
default, and requests that a browser could be made to send are refused (an Origin, a foreign Host,
any content type but JSON). Requests are bounded in bytes and seconds, connections and runs in
number: one run too many is answered with 429, which OpenAI's clients retry.

When a client disconnects, its run ends. During shutdown (`drain`) running runs are finished, and
new ones are refused. Runs that are cut off stay recorded as interrupted, and a request that names
their thread resumes them.

A stream carries the content of the answer (`answers.visible`), and a comment line for each node
that has ended, which clients skip and people can read with `curl -N`. Thoughts are sent whole,
before the rest of the content when the run has ended: only then it is known which of its answers is
the last one. Errors before the first event are HTTP errors; later ones are an event.

Not covered: TLS (a reverse proxy), several tenants (one token, one store).
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from typing import Any

from hrm_agent import __version__
from hrm_agent.basics.async_bridge import call_in_thread
from hrm_agent.basics.strict_json import to_json
from hrm_agent.errors import ConfigError, HrmError, ModelError, StoreFullError, to_install
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.serving.answers import (
    chunk,
    completion,
    error_body,
    model_card,
    reasoning,
    usage_chunk,
)
from hrm_agent.runtime.serving.feedback import add_feedback
from hrm_agent.runtime.serving.requests import ChatRequest, RefusedError, read_request
from hrm_agent.runtime.serving.runs import AnswerStream, Chats
from hrm_agent.trajectory import RunStatus, Sampling, Trajectory

try:
    from aiohttp import web

    from hrm_agent.basics.http_server import (
        HEALTH,
        MAX_REQUEST_BYTES,
        BadRequestError,
        application,
        body_of,
        json_answer,
        listening,
        one_token,
        serve_routes,
    )
except ImportError as error:
    raise HrmError("Graphs are served with aiohttp.", f"Run `{to_install('service')}`.") from error

__all__ = ["CONCURRENCY", "MAX_REQUEST_BYTES", "SERVICE", "THREAD_HEADER", "ChatService", "serving"]

SERVICE = "hrm-agent serve"
THREAD_HEADER = "X-HRM-Agent-Thread"
"""Header with the thread of a run: in every answer, and in a request that may be sent again."""
CONCURRENCY = 16
SECONDS_TO_COMMIT = 3.0
"""Time limit of /health for a commit of the store."""
SECONDS_HEALTHY = 1.0
"""Time for which an answer to /health is reused, for any number of requests."""
SECONDS_BETWEEN_SIGNS = 15.0
"""Maximum silence of a stream."""
SECONDS_TO_REFUSE = 1.0
"""Maximum time that a stream waits, before its HTTP status, for a first event or error."""
SECONDS_BETWEEN_EVENTS = 0.02
_THREAD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_LOG = logging.getLogger(__name__)
_STATUS: tuple[tuple[type[HrmError], int], ...] = (
    (ConfigError, 400),
    (ModelError, 502),
    (StoreFullError, 507),
)
_CODES = {401: "invalid_api_key", 404: "unknown_url"}


class ChatService:
    """Handlers of the requests. `serving` connects them to a socket."""

    def __init__(
        self,
        runner: EpisodeRunner,
        graphs: Sequence[str],
        token: str,
        *,
        hosts: Sequence[str] = (),
        concurrency: int = CONCURRENCY,
        request_bytes: int = MAX_REQUEST_BYTES,
        context: Mapping[str, Any] | None = None,
        configurable: Mapping[str, Any] | None = None,
        keep: Callable[[Episode, Sampling], object] | None = None,
    ) -> None:
        """`hosts`: allowed values of a request's Host header; empty: any. The other parameters are
        those of `Chats`.
        """
        self.chats = Chats(runner, graphs, concurrency, context, configurable, keep)
        self._started = time.time()
        self._store = runner.store
        self._checking: asyncio.Task[str] | None = None
        self._checked_until = 0.0
        self._committing: Future[None] | None = None
        self.app = application(
            one_token(token),
            hosts,
            request_bytes,
            lambda error, request: _error(_refusal(error, request)),
        )
        serve_routes(
            self.app,
            [
                web.get("/health", self._health, name=HEALTH, allow_head=False),
                web.get("/v1/models", self._models, allow_head=False),
                web.get("/v1/models/{name:(?s:.*)}", self._model, allow_head=False),
                web.post("/v1/chat/completions", self._complete),
                web.post("/v1/feedback", self._feedback),
            ],
        )

    async def _health(self, request: web.Request) -> web.StreamResponse:
        """Check the store: all runs need it, and one thread may make the commits of all of them."""
        del request
        about = {"service": SERVICE, "version": __version__}
        if self._checking is None or (
            self._checking.done() and time.monotonic() > self._checked_until
        ):
            self._checking = asyncio.create_task(self._check())
        if why := await asyncio.shield(self._checking):
            return json_answer({**about, "status": "failing", "error": why}, 503)
        return json_answer({**about, "status": "ok"})

    async def _check(self) -> str:
        committing = self._committing
        if committing is None or committing.done():
            committing = self._committing = call_in_thread(
                lambda: self._store.database.add(lambda _: None)
            )
        try:
            async with asyncio.timeout(SECONDS_TO_COMMIT):
                await asyncio.shield(asyncio.wrap_future(committing))
        except TimeoutError:
            return f"The store has not committed within {SECONDS_TO_COMMIT:g} s."
        except Exception as error:
            return str(error)
        finally:
            self._checked_until = time.monotonic() + SECONDS_HEALTHY
        return ""

    async def _models(self, request: web.Request) -> web.StreamResponse:
        del request
        return json_answer(
            {
                "object": "list",
                "data": [model_card(name, self._started) for name in self.chats.graphs],
            }
        )

    async def _model(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in self.chats.graphs:
            raise RefusedError(404, "No model of that name.", code="model_not_found", param="model")
        return json_answer(model_card(name, self._started))

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        asked = read_request(await body_of(request))
        thread = request.headers.get(THREAD_HEADER)
        if thread is not None and not _THREAD.fullmatch(thread):
            raise RefusedError(
                400,
                "The thread's name must have up to 128 letters, digits and `._:-`.",
                param=THREAD_HEADER,
            )
        with self.chats.admitted(asked, thread) as episode:
            stream_out = AnswerStream(self.chats.graphs[asked.model], asked.stop)
            if asked.stream:
                return await self._stream(request, asked, episode, stream_out)
            ended = _unless_failed(
                await self.chats.run(asked, episode, stream_out, lasting=thread is not None)
            )
            answer = json_answer(
                completion(ended, stream_out.content(ended), stream_out.thoughts(ended))
            )
            answer.headers[THREAD_HEADER] = episode.thread_id
            return answer

    async def _feedback(self, request: web.Request) -> web.StreamResponse:
        body = await body_of(request)
        return json_answer(await asyncio.to_thread(add_feedback, self._store, body))

    async def _stream(
        self, request: web.Request, asked: ChatRequest, episode: Episode, stream_out: AnswerStream
    ) -> web.StreamResponse:
        lasting = THREAD_HEADER in request.headers
        run = asyncio.create_task(self.chats.run(asked, episode, stream_out, lasting=lasting))
        run.add_done_callback(lambda _: stream_out.changed.set())
        try:
            await _wait(stream_out, SECONDS_TO_REFUSE)
            if run.done() and run.exception() is not None:
                run.result()
            events = _Events(request, asked, episode)
            await events.begin()
            try:
                while not run.done():
                    await events.tell(stream_out)
                    await _wait(stream_out, SECONDS_BETWEEN_SIGNS)
                    await asyncio.sleep(SECONDS_BETWEEN_EVENTS)  # several tokens make one event
                await events.end(stream_out, _unless_failed(run.result()))
            except ConnectionError:  # the client is gone
                pass
            except Exception as error:
                await events.fail(_refusal(error, request))
            return events.response
        finally:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)


class _Events:
    """A stream of server-sent events."""

    def __init__(self, request: web.Request, asked: ChatRequest, episode: Episode) -> None:
        self._request = request
        self._asked = asked
        self._episode = episode
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

    async def tell(self, stream_out: AnswerStream) -> None:
        """Send new content, and a comment for each ended node; an empty comment if there is nothing
        new.
        """
        nodes = stream_out.nodes()
        news = stream_out.news()
        if nodes or not news:
            await self.response.write("".join(f": {node}\n\n" for node in nodes or [""]).encode())
        if news:
            await self._send({"content": news})

    async def end(self, stream_out: AnswerStream, ended: Trajectory) -> None:
        if thought := reasoning(stream_out.thoughts(ended)):
            await self._send(thought)
        if rest := stream_out.rest(ended):
            await self._send({"content": rest})
        await self._send({}, ended)
        if self._asked.include_usage:
            await self._event(usage_chunk(ended, self._created))
        await self.response.write(b"data: [DONE]\n\n")
        await self.response.write_eof()

    async def fail(self, refused: RefusedError) -> None:
        """Send an error as an event, since there is no HTTP status after the first event."""
        with suppress(ConnectionError):
            await self._event(_body_of(refused))
            await self.response.write_eof()

    async def _send(self, delta: dict[str, Any], ended: Trajectory | None = None) -> None:
        identity = self._episode.trajectory_id
        await self._event(chunk(identity, self._episode.graph, self._created, delta, ended))

    async def _event(self, record: dict[str, Any]) -> None:
        await self.response.write(f"data: {to_json(record)}\n\n".encode())


async def _wait(stream_out: AnswerStream, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stream_out.changed.wait()
    stream_out.changed.clear()


def _refusal(error: Exception, request: web.Request) -> RefusedError:
    """Convert an error for the client. An internal error is logged here, and its traceback is not
    sent.
    """
    match error:
        case RefusedError():
            return error
        case BadRequestError():
            return RefusedError(error.status, error.message, code=_CODES.get(error.status))
        case HrmError():
            status = next((status for kind, status in _STATUS if isinstance(error, kind)), 503)
            return RefusedError(status, f"{error.message} {error.hint}".strip())
        case _:
            _LOG.error("request failed: %s %s", request.method, request.path, exc_info=error)
            return RefusedError(500, "The server failed; see its log.")


def _unless_failed(ended: Trajectory) -> Trajectory:
    if ended.status in (RunStatus.FAILED, RunStatus.ABORTED):
        why = ended.error or "it was aborted"
        raise RefusedError(500, f"The run {ended.thread_id} failed: {why}.", code="run_failed")
    return ended


def _body_of(refused: RefusedError) -> dict[str, Any]:
    return error_body(refused.status, refused.message, refused.code, refused.param)


def _error(refused: RefusedError) -> web.Response:
    answer = json_answer(_body_of(refused), refused.status)
    if refused.status in (429, 503):
        answer.headers["Retry-After"] = "1"
    return answer


@asynccontextmanager
async def serving(
    service: ChatService,
    listener: socket.socket,
    *,
    drain_seconds: float = 30.0,
) -> AsyncGenerator[None]:
    """Serve inside the block, and drain at its end. `listener` is closed."""
    async with listening(service.app, listener, lambda: service.chats.drain(drain_seconds)):
        yield
