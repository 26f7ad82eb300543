"""Between synchronous and asynchronous code.

Run a coroutine and wait, call in a thread, keep an event loop in one, block for a moment in a loop
that is watched.
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
    """Let the code inside block for a moment, such as a commit's.

    `langgraph dev` watches its event loop, and raises in code that blocks it.
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

    In a thread of its own, since the caller's may have a running event loop. That thread has ended
    when this returns, also where the waiting was interrupted.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="run-sync") as thread:
        return thread.submit(copy_context().run, asyncio.run, work).result()


def call_in_thread(
    function: Callable[[], _Result], context: Context | None = None
) -> Future[_Result]:
    """Call `function` in a daemon thread, which nobody has to wait for.

    `context`: its context variables; None copies the caller's. A future that is cancelled before
    the thread runs keeps the function from being called, and cannot be cancelled after that.
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
    """Daemon threads that are used again: one that hangs is lost, and a further one is made where
    none is idle.
    """

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[tuple[Callable[[], Any], Context, Future[Any]]]] = []

    def call(self, function: Callable[[], _Result]) -> Future[_Result]:
        """Call `function` in one of them, with the caller's context variables. Its future cannot be
        cancelled.
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
            result, error = None, None
            try:
                result = context.run(function)
            except BaseException as raised:
                error = raised
            self._idle.append(asked)  # before who waits is told, who may ask for the next at once
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)
            # what they hold is not kept while nothing is asked
            del function, context, future, result, error


class BackgroundLoop:
    """An event loop in a daemon thread: for what belongs to one loop and is asked for from many
    threads and loops.

    A child of a fork has no such thread: it has to make a loop of its own.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._guard, self._over = LoopGuard(name), False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """SystemExit in one task ends an event loop, and with it everybody's tasks: this one goes
        on.
        """
        while not self._over:
            with self._guard:
                self.loop.run_forever()

    def submit(self, work: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        """Begin `work` there. Cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run `work` there and wait. An interrupt of the waiting cancels it."""
        future = self.submit(work)
        try:
            return future.result()
        finally:
            future.cancel()

    async def run_async(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run `work` there without blocking the caller's loop; who is cancelled here is cancelled
        there.
        """
        return await asyncio.wrap_future(self.submit(work))

    def close(self) -> None:
        """What is still under way stays unfinished."""
        self._over = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
