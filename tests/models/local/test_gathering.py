"""Waiting of the engine for callers that are about to ask. An endless wait runs into the test's
time limit.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from hrm_agent.models.local import gathering
from hrm_agent.models.local.gathering import Gathering


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.AbstractEventLoop]:
    """Running event loop, on which the engine waits without a time limit."""
    monkeypatch.setattr(gathering, "_LONGEST_SECONDS", 3600.0)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def asked_from(loop: asyncio.AbstractEventLoop, lately: int = 8) -> Gathering:
    """One that had `lately` requests of this loop."""
    found = Gathering()

    async def ask() -> None:
        found.called()

    asyncio.run_coroutine_threadsafe(ask(), loop).result()
    found.wait(lambda: lately)
    return found


def test_a_busy_loop_is_waited_for_until_half_of_the_requests_are_there(
    loop: asyncio.AbstractEventLoop,
) -> None:
    found, requests = asked_from(loop), [1]

    def work() -> None:
        time.sleep(0.002)
        requests[0] += 1
        if requests[0] < 8:
            loop.call_soon(work)

    loop.call_soon_threadsafe(work)
    found.wait(lambda: requests[0])
    assert requests[0] >= 4


def test_an_idle_loop_is_not_waited_for(loop: asyncio.AbstractEventLoop) -> None:
    asked_from(loop).wait(lambda: 1)


def test_a_loop_that_stands_still_is_waited_for_once(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node can block its loop in this way until it has its answer."""
    found, stands, go_on = asked_from(loop), threading.Event(), threading.Event()
    loop.call_soon_threadsafe(lambda: (stands.set(), go_on.wait()))
    stands.wait()
    found.wait(lambda: 0)  # such as before weights are published
    with monkeypatch.context() as short:
        short.setattr(gathering, "_LONGEST_SECONDS", 0.01)
        found.wait(lambda: 1)
    found.wait(lambda: 1)
    go_on.set()


def test_a_loop_that_is_closed_and_a_thread_without_one_are_not_waited_for(
    loop: asyncio.AbstractEventLoop,
) -> None:
    closed = asyncio.new_event_loop()

    async def ask(found: Gathering) -> None:
        found.called()

    found = Gathering()
    closed.run_until_complete(ask(found))
    closed.close()
    found.wait(lambda: 8)
    found.wait(lambda: 1)
    other = asked_from(loop)
    other.called()
    other.wait(lambda: 1)
