"""Bridge between synchronous and asynchronous code: run a coroutine and wait, call a function in a
thread, keep an event loop in a thread, block for a moment in an event loop that is watched.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import Any, TypeVar

from hrm_agent.basics.guarded_loop import LoopGuard

__all__ = ["BackgroundLoop", "ReusedThreads", "call_in_thread", "may_block", "run_sync"]

_Result = TypeVar("_Result")


@contextmanager
def may_block() -> Generator[None]:
    """Allow code inside the block to block the event loop for a moment, such as for a commit.

    `langgraph dev` watches its event loop, and raises in code that blocks the loop.
    """
    skip: Any = getattr(sys.modules.get("blockbuster.blockbuster"), "_skip", None)
    if skip is None or skip.value:
        yield
        return
    skip.value = True
    try:
        yield
    finally:
        skip.value = False


def run_sync(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run `work` to its end, with the caller's context variables.

    `work` runs in a new thread, since the caller's thread may have a running event loop. The thread
    has ended when this function returns, even if the wait was interrupted.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="run-sync") as thread:
        return thread.submit(copy_context().run, asyncio.run, work).result()


def call_in_thread(
    function: Callable[[], _Result], context: Context | None = None
) -> Future[_Result]:
    """Call `function` in a daemon thread, which does not have to be joined.

    `context`: context variables for the call (None: a copy of the caller's). If the future is
    cancelled before the thread runs, the function is not called. Later the future cannot be
    cancelled.
    """
    future: Future[_Result] = Future()
    inside = copy_context() if context is None else context

    def target() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(inside.run(function))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=target, daemon=True).start()
    return future


class ReusedThreads:
    """Pool of daemon threads. If no thread is idle, a new one is made. A thread that hangs is
    lost.
    """

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[tuple[Callable[[], Any], Context, Future[Any]]]] = []

    def call(self, function: Callable[[], _Result]) -> Future[_Result]:
        """Call `function` in a thread of the pool, with the caller's context variables. The
        returned future cannot be cancelled.
        """
        future: Future[_Result] = Future()
        future.set_running_or_notify_cancel()
        try:
            asked = self._idle.pop()
        except IndexError:
            asked = queue.SimpleQueue[tuple[Callable[[], Any], Context, Future[Any]]]()
            threading.Thread(target=self._serve, args=(asked,), daemon=True).start()
        asked.put((function, copy_context(), future))
        return future

    def _serve(
        self, asked: queue.SimpleQueue[tuple[Callable[[], Any], Context, Future[Any]]]
    ) -> None:
        while True:
            function, context, future = asked.get()
            result = None
            error = None
            try:
                result = context.run(function)
            except BaseException as raised:
                error = raised
            # before the result is set, since the waiter may call again at once
            self._idle.append(asked)
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)
            # while idle, the thread keeps no reference to the arguments and the result
            del function, context, future, result, error


class BackgroundLoop:
    """Event loop in a daemon thread, for objects that belong to one loop and are used from many
    threads and loops.

    A forked child does not have the thread and has to make another loop.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._guard = LoopGuard(name)
        self._over = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """Run the loop until it is closed. An error such as SystemExit in one task ends
        `run_forever`, so it is called again for the other tasks.
        """
        while not self._over:
            with self._guard:
                self.loop.run_forever()

    def submit(self, work: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        """Start `work` on the loop. Cancelling the future cancels `work`."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run `work` on the loop and wait. Interrupting the wait cancels `work`."""
        future = self.submit(work)
        try:
            return future.result()
        finally:
            future.cancel()

    async def run_async(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run `work` on this loop without blocking the caller's loop. Cancelling the caller cancels
        `work`.
        """
        return await asyncio.wrap_future(self.submit(work))

    def close(self) -> None:
        """Stop the loop and its thread. Tasks that still run are left unfinished."""
        self._over = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
