"""Threads in which answers are made. The server does not wait for them when it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from hrm_agent.basics.http_server import BadRequestError

__all__ = ["MAX_WAITING", "THREADS", "AnswerThreads"]

T = TypeVar("T")
THREADS, MAX_WAITING = 4, 64
"""Number of parallel answers, and of requests that may wait for a thread."""


class AnswerThreads:
    """Bounded number of threads for answers. Requests beyond the limit are refused."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(THREADS)
        self._open = set[asyncio.Task[Any]]()

    async def run(self, work: Callable[[], T]) -> T:
        """Result of `work`. The work occupies its place until it is done, even if the client has
        disconnected.
        """
        if len(self._open) >= THREADS + MAX_WAITING:
            raise BadRequestError(503, "Too many requests wait to be answered.", "Wait a moment.")
        begun = asyncio.Event()
        task = asyncio.create_task(self._in_thread(work, begun))
        self._open.add(task)
        task.add_done_callback(self._done)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not begun.is_set():
                task.cancel()
            raise

    async def _in_thread(self, work: Callable[[], T], begun: asyncio.Event) -> T:
        async with self._free:
            begun.set()
            loop = asyncio.get_running_loop()
            result = asyncio.Future[T]()

            def deliver(give: Callable[[], None]) -> None:
                if not result.done():  # the server has ended
                    give()

            def answer() -> None:
                try:
                    give = partial(result.set_result, work())
                except BaseException as error:
                    give = partial(result.set_exception, error)
                with suppress(RuntimeError):  # the event loop is closed
                    loop.call_soon_threadsafe(deliver, give)

            threading.Thread(target=answer, name="view-answer", daemon=True).start()
            return await result

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._open.discard(task)
        if not task.cancelled():
            # retrieve it, since asyncio would report it if the client has disconnected
            task.exception()
