"""Hints that something has changed: one thread looks at all places once a second, and every page that listens is told.

A hint names places and nothing else; a page asks again for what it shows. So a hint that comes too late, or twice, does
no harm, and of several that a page was too slow for one is enough.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress

from aiohttp import web

from hrm_agent.http_server import BadRequestError
from hrm_agent.strict_json import to_json

__all__ = ["MAX_LISTENERS", "SECONDS_BETWEEN_LOOKS", "Events"]

MAX_LISTENERS = 64
SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_BETWEEN_SIGNS = 15.0
"""So long a listener hears nothing at most."""
SECONDS_TO_TAKE = 10.0
"""A listener that takes nothing for so long is dropped."""
_LOG = logging.getLogger(__name__)


class _Listener:
    def __init__(self) -> None:
        self.news = set[str]()
        self.told = asyncio.Event()


class Events:
    """All pages that listen."""

    def __init__(self, changed: Callable[[], Sequence[str]]) -> None:
        """`changed`: ids of the places that changed since it was last called; it is called in a thread."""
        self._changed = changed
        self._listeners = set[_Listener]()

    @asynccontextmanager
    async def watching(self) -> AsyncGenerator[None]:
        """Look inside the block."""
        with ThreadPoolExecutor(1, "view-watch") as thread:
            task = asyncio.create_task(self._watch(thread))
            try:
                yield
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _watch(self, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
            if not self._listeners:
                continue
            try:
                found = await loop.run_in_executor(thread, self._changed)
            except Exception:
                _LOG.exception("The places could not be looked at.")
                continue
            for listener in self._listeners if found else ():
                listener.news.update(found)
                listener.told.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """A stream of server-sent events, until the page goes."""
        if len(self._listeners) >= MAX_LISTENERS:
            raise BadRequestError(503, f"{MAX_LISTENERS} pages listen already.", "Close some of them.")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        listener = _Listener()
        self._listeners.add(listener)
        try:
            async with asyncio.timeout(SECONDS_TO_TAKE):
                await response.prepare(request)
                await response.write(b": listening\n\n")
            while True:
                await self._tell(response, listener)
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._listeners.discard(listener)
        return response

    async def _tell(self, response: web.StreamResponse, listener: _Listener) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(SECONDS_BETWEEN_SIGNS):
                await listener.told.wait()
        listener.told.clear()
        news, listener.news = sorted(listener.news), set()
        event = f"event: change\ndata: {to_json({'places': news})}\n\n" if news else ":\n\n"
        async with asyncio.timeout(SECONDS_TO_TAKE):
            await response.write(event.encode())
