"""Events about changes: one thread checks all places once a second and notifies every listening
page.

An event only has the names of places. After it, a page requests again what it shows. So a late or
repeated event does no harm, and several events may be sent to a slow page as one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from aiohttp import web

from hrm_agent.basics.guarded_loop import LoopGuard
from hrm_agent.basics.http_server import BadRequestError
from hrm_agent.basics.strict_json import to_json

__all__ = ["MAX_LISTENERS", "SECONDS_BETWEEN_LOOKS", "Events"]

MAX_LISTENERS = 64
SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_BETWEEN_SIGNS = 15.0
"""Maximum seconds between two messages to a listener. Without a change, an empty comment is sent.
"""
SECONDS_TO_TAKE = 10.0
"""Seconds after which a listener that does not read is dropped."""


class _Listener:
    def __init__(self) -> None:
        self.news = set[str]()
        self.told = asyncio.Event()


class Events:
    """Listening pages."""

    def __init__(self, changed: Callable[[], Sequence[str]]) -> None:
        """`changed`: returns ids of the places that changed since its last call. It is called in a
        thread.
        """
        self._changed = changed
        self._listeners = set[_Listener]()
        self._over = False

    @property
    def listeners(self) -> int:
        """Number of listening pages."""
        return len(self._listeners)

    @asynccontextmanager
    async def watching(self) -> AsyncGenerator[None]:
        """Watch for changes inside the block."""
        loop = asyncio.get_running_loop()
        stopped = threading.Event()
        threading.Thread(
            target=self._watch, args=(loop, stopped), name="view-watch", daemon=True
        ).start()
        try:
            yield
        finally:
            stopped.set()

    def end(self) -> None:
        """End the streams of all listeners."""
        self._over = True
        for listener in self._listeners:
            listener.told.set()

    def _watch(self, loop: asyncio.AbstractEventLoop, stopped: threading.Event) -> None:
        known = False
        guard = LoopGuard("view-watch")
        while True:
            found: Sequence[str] = ()
            with guard:
                found = self._changed() if self._listeners or not known else ()
            if found and known:
                with suppress(RuntimeError):  # the server has ended
                    loop.call_soon_threadsafe(self._say, found)
            known = True
            if stopped.wait(SECONDS_BETWEEN_LOOKS):
                return

    def _say(self, changed: Sequence[str]) -> None:
        for listener in self._listeners:
            listener.news.update(changed)
            listener.told.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Stream server-sent events until the page is closed."""
        if len(self._listeners) >= MAX_LISTENERS:
            raise BadRequestError(
                503, f"{MAX_LISTENERS} pages listen already.", "Close some of them."
            )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        listener = _Listener()
        self._listeners.add(listener)
        try:
            async with asyncio.timeout(SECONDS_TO_TAKE):
                await response.prepare(request)
                await response.write(b": listening\n\n")
            while not self._over:
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
        news = sorted(listener.news)
        listener.news = set()
        event = f"event: change\ndata: {to_json({'places': news})}\n\n" if news else ":\n\n"
        async with asyncio.timeout(SECONDS_TO_TAKE):
            await response.write(event.encode())
