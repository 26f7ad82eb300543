"""One event loop, in a thread of its own, that all connections to wikis live on.

A connection belongs to the event loop it was opened on, and so does a queue for it. On one loop, threads and other
event loops share both, and a caller that is cancelled gives its place in the queue back at once.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

__all__ = ["run", "run_async", "the_loop"]

_Result = TypeVar("_Result")
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def the_loop() -> asyncio.AbstractEventLoop:
    """The loop, which is started when it is first asked for."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="wikis", daemon=True).start()
        return _loop


def run(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Run to the end and wait. An interrupt of the waiting cancels it."""
    future = _begin(coroutine)
    try:
        return future.result()
    finally:
        future.cancel()


async def run_async(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Run to the end without blocking the caller's loop; who is cancelled here is cancelled there."""
    return await asyncio.wrap_future(_begin(coroutine))


def _begin(coroutine: Coroutine[Any, Any, _Result]) -> Future[_Result]:
    return asyncio.run_coroutine_threadsafe(coroutine, the_loop())


def _forget() -> None:
    """A child of a fork has no thread but its own."""
    global _loop, _lock
    _loop, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
