"""A server that answers as vLLM does, over real connections, and misbehaves on demand."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self

from aiohttp import web

from hrm_agent.basics.async_bridge import BackgroundLoop

Misbehaviour = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
Answer = Callable[[dict[str, Any]], Sequence[int]]

END = 257
"""`ByteCodec`'s end of turn."""


def logprob(token: int) -> float:
    return -(1 + token % 7) / 8


class VllmStub:
    """Stub of a vLLM server. `answer` returns the token ids for a request's body. Each item of
    `next` answers one request instead of `answer`.
    """

    def __init__(
        self, answer: Answer = lambda _: [*b"ok", END], *, key: str = "", mode: str = "raw_logprobs"
    ) -> None:
        self.answer, self.key, self.mode = answer, key, mode
        self.models: list[dict[str, Any]] = [
            {"id": "served", "root": "no/such-folder", "max_model_len": 4096}
        ]
        self.next: deque[Misbehaviour] = deque()
        self.bodies: list[dict[str, Any]] = []
        """Bodies of all accepted requests for a completion."""
        self.hung_up = 0
        """Number of requests whose caller went away before the answer."""
        self.busy = self.most_busy = 0
        self.seconds = 0.0
        """Time between two tokens, in seconds."""
        self.together = 1
        """Number of parallel requests to wait for before any is answered."""
        self.tokenize: Callable[[str], list[int]] | None = None
        self._loop = BackgroundLoop("vllm stub")
        self._runner: Any = None
        self._place = socket.socket()
        """Socket that keeps the port for this server while it is stopped: no other process gets the
        port, and nobody answers on it.
        """
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._place.bind(("127.0.0.1", 0))
        self.port: int = self._place.getsockname()[1]

    def start(self) -> Self:
        self._loop.submit(self._start()).result(60)
        return self

    def stop(self) -> None:
        """Stop as if killed: connections are cut. `start` brings the server back."""
        self._loop.submit(self._runner.cleanup()).result(60)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._loop.close()
        self._place.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def _start(self) -> None:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_routes(self.routes())
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_port=True).start()

    def routes(self) -> list[web.RouteDef]:
        """Additional routes."""
        return []

    async def _models(self, request: web.Request) -> web.Response:
        return self._refused(request) or web.json_response({"object": "list", "data": self.models})

    async def _tokenize(self, request: web.Request) -> web.Response:
        if self.tokenize is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        return web.json_response({"tokens": self.tokenize((await request.json())["prompt"])})

    def _refused(self, request: web.Request) -> web.Response | None:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return None

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        if refused := self._refused(request):
            return refused
        body = await request.json()
        if "allowed_token_ids" in body:
            return web.json_response(self._probed())
        self.bodies.append(body)
        self.busy += 1
        self.most_busy = max(self.busy, self.most_busy)
        try:
            while self.most_busy < self.together:
                await asyncio.sleep(0.01)
            return await (
                self.next.popleft()(request, body) if self.next else self._answered(request, body)
            )
        except (asyncio.CancelledError, ConnectionError):
            self.hung_up += 1
            raise
        finally:
            self.busy -= 1

    def _probed(self) -> dict[str, Any]:
        first, top = {
            "raw_logprobs": (-4.0, -0.5),
            "processed_logprobs": (0.0, 0.0),
            "raw_logits": (-4.0, 9.0),
        }[self.mode]
        said = {"token_logprobs": [first], "top_logprobs": [{"a": first, "b": top}]}
        return {
            "choices": [{"index": 0, "token_ids": [0], "logprobs": said, "finish_reason": "length"}]
        }

    async def _answered(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        tokens = list(self.answer(body))
        reason = "length" if len(tokens) > body["max_tokens"] else "stop"
        tokens = tokens[: body["max_tokens"]]
        if not body.get("stream"):
            await asyncio.sleep(self.seconds * len(tokens))
            return web.json_response(
                {"choices": [choice(tokens, prompt=body["prompt"], reason=reason)]}
            )
        response = await open_stream(request)
        for i, token in enumerate(tokens):
            last = i == len(tokens) - 1
            piece = choice(
                [token], prompt=None if i else body["prompt"], reason=reason if last else None
            )
            await response.write(event({"choices": [piece]}))
            await asyncio.sleep(self.seconds)
        await response.write(b"data: [DONE]\n\n")
        return response


def choice(
    tokens: Sequence[int], *, prompt: Any = None, reason: str | None = "stop", **other: Any
) -> dict[str, Any]:
    said = {"token_logprobs": [logprob(token) for token in tokens], "tokens": ["?"] * len(tokens)}
    made = {
        "index": 0,
        "text": "?" * len(tokens),
        "token_ids": list(tokens),
        "logprobs": said,
        "finish_reason": reason,
    }
    return {**made, "prompt_token_ids": prompt, **other}


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


async def open_stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


def says(value: Any, status: int = 200, **headers: str) -> Misbehaviour:
    """Misbehaviour: answer with `value`, as JSON unless it is bytes."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()

    async def misbehave(request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        return web.Response(body=body, status=status, headers=headers)

    return misbehave


def says_of(make: Callable[[dict[str, Any]], Any]) -> Misbehaviour:
    """Answers with one choice, made from the request's body."""

    async def misbehave(request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"choices": [make(asked)]})

    return misbehave


def streams(*pieces: bytes | Callable[[dict[str, Any]], bytes], hang: bool = False) -> Misbehaviour:
    """Misbehaviour: send `pieces`, then hang up, or with `hang` send nothing more."""

    async def misbehave(request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        response = await open_stream(request)
        for piece in pieces:
            await response.write(piece if isinstance(piece, bytes) else piece(asked))
        if hang:
            await asyncio.sleep(600)
        return response

    return misbehave


async def hangs_up(request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
    """Cut the connection without an answer."""
    assert request.transport is not None
    request.transport.abort()
    await asyncio.sleep(600)
    raise AssertionError
