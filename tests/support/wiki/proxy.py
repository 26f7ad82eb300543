"""A proxy before a wiki. It misbehaves when a test says so, and otherwise passes on the wiki's
answers.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from aiohttp import ClientSession, web

from hrm_agent.basics.async_bridge import BackgroundLoop
from hrm_agent.tools.mediawiki import transport

__all__ = ["Answer", "Asked", "Proxy", "dies", "says", "serving", "silence"]

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Asked(NamedTuple):
    """A request that came in."""

    query: dict[str, str]
    headers: dict[str, str]


class Proxy:
    """Proxy that first gives its `answers`, one for each request."""

    def __init__(self, behind: str) -> None:
        self._behind = behind
        self.answers: list[Answer] = []
        self.always: Answer | None = None
        """Answer if there are no more `answers` (None: the wiki's own)."""
        self.asked: list[Asked] = []
        self.at_once = self.most_at_once = 0
        """Number of requests that are being answered now, and the largest such number so far."""
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(Asked(dict(request.query), dict(request.headers)))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            answer = self.answers.pop(0) if self.answers else self.always or self.pass_on
            return await answer(request)
        finally:
            self.at_once -= 1

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        async with (
            ClientSession() as session,
            session.get(self._behind, params=request.query) as response,
        ):
            kind = response.headers["Content-Type"]
            return web.Response(
                body=await response.read(), status=response.status, headers={"Content-Type": kind}
            )


@contextmanager
def serving(proxy: Proxy, tls: ssl.SSLContext | None = None) -> Generator[Proxy]:
    """Serve a proxy on a free port of the loopback, in a separate thread.

    Clients forget earlier proxies, which may have had the same port and asked clients to wait for
    an hour.
    """
    loop = BackgroundLoop("wiki proxy")
    runner: web.AppRunner

    async def begin() -> None:
        nonlocal runner
        app = web.Application()
        app.router.add_get("/{path:.*}", proxy.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        proxy.url = f"http{'s' if tls else ''}://127.0.0.1:{runner.addresses[0][1]}/api.php"

    try:
        loop.submit(begin()).result(60)
        with patch.object(transport, "_hosts", {}):
            yield proxy
    finally:
        loop.submit(runner.cleanup()).result(60)
        loop.close()


def says(status: int = 200, headers: dict[str, str] | None = None, **body: Any) -> Answer:
    """An answer in JSON."""

    async def answer(request: web.Request) -> web.StreamResponse:
        del request
        return web.json_response(body, status=status, headers=headers)

    return answer


async def silence(request: web.Request) -> web.StreamResponse:
    """Answer later than any client of the tests waits."""
    del request
    await asyncio.sleep(300)
    return web.json_response({})


async def dies(request: web.Request) -> web.StreamResponse:
    """End the connection in the middle of the body."""
    response = web.StreamResponse(
        headers={"Content-Length": "1000", "Content-Type": "application/json"}
    )
    await response.prepare(request)
    await response.write(b'{"query": ')
    assert request.transport is not None
    request.transport.close()
    return response
