"""Coroutines for synchronous callers: inside and outside an event loop, with their context, to
their end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextvars import Context, ContextVar

import pytest

from hrm_agent.basics.async_bridge import BackgroundLoop, ReusedThreads, call_in_thread, run_sync

word = ContextVar("word", default="nothing")


@pytest.fixture
def background() -> Iterator[BackgroundLoop]:
    loop = BackgroundLoop("test")
    yield loop
    loop.close()


async def said() -> tuple[str, int]:
    await asyncio.sleep(0)
    return word.get(), threading.get_ident()


async def fails() -> None:
    await asyncio.sleep(0)
    raise LookupError("not here")


async def test_it_runs_beside_a_running_loop_with_the_callers_context() -> None:
    word.set("mine")
    heard, thread = run_sync(said())
    assert heard == "mine" and thread != threading.get_ident()
    with pytest.raises(LookupError, match="not here"):
        run_sync(fails())


def test_it_runs_where_there_is_no_loop() -> None:
    assert run_sync(said())[0] == "nothing"


def test_a_thread_has_a_copy_of_the_context_or_the_one_that_is_given() -> None:
    token = word.set("mine")
    try:
        assert call_in_thread(word.get).result(60) == "mine"
        assert call_in_thread(word.get, Context()).result(60) == "nothing"
        call_in_thread(lambda: word.set("theirs")).result(60)
        assert word.get() == "mine"
    finally:
        word.reset(token)


def test_what_a_thread_raises_is_in_its_future() -> None:
    with pytest.raises(ZeroDivisionError):
        call_in_thread(lambda: 1 // 0).result(60)


async def test_threads_and_loops_share_a_background_loop(background: BackgroundLoop) -> None:
    places = {
        (await background.run_async(said()))[1],
        background.run(said())[1],
        background.submit(said()).result(60)[1],
    }
    assert len(places) == 1 and threading.get_ident() not in places
    with pytest.raises(LookupError):
        await background.run_async(fails())


async def test_who_is_cancelled_here_is_cancelled_there(background: BackgroundLoop) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def endless() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    waiting = asyncio.create_task(background.run_async(endless()))
    assert await asyncio.to_thread(begun.wait, 60)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.to_thread(ended.wait, 60)


def test_a_thread_is_used_again_unless_it_hangs() -> None:
    threads, go = ReusedThreads(), threading.Event()
    first = threads.call(threading.get_ident).result()
    assert threads.call(threading.get_ident).result() == first
    hanging = threads.call(go.wait)
    assert threads.call(threading.get_ident).result() != first
    go.set()
    assert hanging.result() is True
    word.set("mine")
    assert threads.call(word.get).result() == "mine"
    with pytest.raises(SystemExit):
        threads.call(lambda: exec("raise SystemExit")).result()
    assert threads.call(lambda: 1).result() == 1, "it lives on"
