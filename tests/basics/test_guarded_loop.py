"""Loops that serve many callers survive an unexpected error. It affects one caller, and the next is
served.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hrm_agent.basics.async_bridge import BackgroundLoop
from hrm_agent.basics.guarded_loop import LoopGuard, surprises
from hrm_agent.environment.base import ExecutionResult, Submission
from hrm_agent.environment.scheduler.scheduler import Deadlines, Scheduler
from hrm_agent.environment.scheduler.sessions import ScheduledCall
from hrm_agent.environment.scheduler.workers import Work
from hrm_agent.runtime.telemetry import _Sending  # pyright: ignore[reportPrivateUsage]
from hrm_agent.store.database.committer import Committer
from hrm_agent.testing import block_until
from hrm_agent.trajectory import ToolStatus
from hrm_agent.viewer import events
from hrm_agent.viewer.events import Events
from tests.support.environment.scheduler_workers import ThreadWorkers
from tests.support.trajectory.samples import make_trajectory

MINUTE = 60


class Loop:
    """A loop with a guard, in a thread, that does what it is given."""

    def __init__(self) -> None:
        self.given = list[Callable[[], object]]()
        self.wake, self.over = threading.Event(), False
        self.guard = LoopGuard("test", self.wake.set)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while not self.over:
            with self.guard:
                self.wake.wait()
                self.wake.clear()
                while self.given:
                    self.given.pop()()

    def do(self, what: Callable[[], object]) -> None:
        self.given.append(what)
        self.wake.set()


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.over = True
    loop.wake.set()
    loop.thread.join(MINUTE)


def raises(error: BaseException) -> Callable[..., Any]:
    def function(*_: object) -> Any:
        raise error

    return function


@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(1), KeyboardInterrupt(), RecursionError()]
)
def test_a_turn_that_raises_is_counted_and_logged(
    error: BaseException, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    before = surprises().get("test", 0)
    loop.do(raises(error))
    block_until(lambda: surprises().get("test", 0) == before + 1)
    assert loop.guard.responds(MINUTE)
    assert [
        record.levelname for record in caplog.records if "The loop test" in record.getMessage()
    ] == ["ERROR"]


def test_a_loop_says_itself_whether_it_turns(loop: Loop) -> None:
    go_on = threading.Event()
    loop.do(lambda: go_on.wait(MINUTE))
    assert not loop.guard.responds(0.1)
    go_on.set()
    assert loop.guard.responds(MINUTE)


async def test_cancellation_passes_a_guard() -> None:
    guard = LoopGuard("test", rests=False)

    async def turns() -> None:
        while True:
            with guard:
                await asyncio.sleep(0)

    task = asyncio.create_task(turns())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_an_interrupt_reaches_the_main_thread() -> None:
    with pytest.raises(KeyboardInterrupt), LoopGuard("test"):
        raise KeyboardInterrupt


# each loop of ours, by a surprise inside of it


def deadlines() -> None:
    told = list[object]()

    def passed(call: ScheduledCall) -> None:
        if not told:
            told.append("the first")
            raise OverflowError("timestamp too large to convert to C _PyTime_t")
        told.append(call)

    watched = Deadlines(passed)
    calls = [ScheduledCall(Submission("1"), number, 0.0) for number in range(2)]
    watched.add(time.monotonic() - 1, calls[0])
    block_until(lambda: len(told) == 1)
    watched.add(float("inf"), calls[0])
    watched.add(time.monotonic() - 1, calls[1])
    block_until(lambda: told[1:] == [calls[1]])
    watched.close()


def queue() -> None:
    """A waiter that raises, in whichever thread notifies it."""
    workers = ThreadWorkers(1)
    scheduler = Scheduler(workers)
    scheduler.enter(Submission("value 1"), raises(ValueError("a waiter")))
    assert scheduler.submit(Submission("value 2")).result(MINUTE).value == "2"
    assert scheduler.submit(Submission("value 4")).result(MINUTE).value == "4"
    scheduler.close()


def launches() -> None:
    """An error at the beginning of a call is that call's outcome, and its slot is free again."""
    workers = ThreadWorkers(1)
    scheduler = Scheduler(workers)
    scheduler.submit(Submission("value 0", session="s")).result(MINUTE)
    sessions = scheduler._dispatch.sessions  # pyright: ignore[reportPrivateUsage]
    visit, sessions.visit = sessions.visit, raises(LookupError("no such session"))
    failed = scheduler.submit(Submission("value 1", session="s")).result(MINUTE)
    assert (failed.status, "no such session" in failed.stderr) == (ToolStatus.INFRASTRUCTURE, True)
    sessions.visit = visit
    for session in (None, "s", "t"):
        assert scheduler.submit(Submission("value 2", session=session)).result(MINUTE).value == "2"
    assert "hrm_environment_running 0\n" in scheduler.metrics()
    assert 'loop_errors_total{loop="environment-queue"}' in scheduler.metrics()
    scheduler.close()


def outcomes() -> None:
    """An error while a call's outcome is examined is that call's outcome, and later calls run."""
    workers = ThreadWorkers(1)
    scheduler = Scheduler(workers)
    sessions = scheduler._dispatch.sessions  # pyright: ignore[reportPrivateUsage]
    survived, sessions.survived = sessions.survived, raises(LookupError("no such session"))
    failed = scheduler.submit(Submission("value 1", session="s")).result(MINUTE)
    assert failed.status is ToolStatus.INFRASTRUCTURE
    sessions.survived = survived
    for session in (None, "s", "t"):
        assert scheduler.submit(Submission("value 2", session=session)).result(MINUTE).value == "2"
    scheduler.close()


def commits() -> None:
    results = iter([[], ["right"], ["right"]])
    committer = Committer(lambda works: next(results))
    with pytest.raises(ValueError, match="zip"):
        committer.submit(lambda _: None).result(MINUTE)
    assert committer.submit(lambda _: None).result(MINUTE) == "right"
    assert committer.submit(lambda _: None, waits=True).result(MINUTE) == "right"
    committer.close()


def background() -> None:
    loop = BackgroundLoop("test-background")

    async def ends() -> None:
        raise SystemExit(1)

    async def says() -> int:
        return 1

    with pytest.raises(SystemExit):
        loop.run(ends())
    assert loop.submit(says()).result(MINUTE) == 1
    loop.close()


def telemetry() -> None:
    sent, said = list[int](), raises(ValueError("I/O operation on closed file"))
    sending = _Sending(lambda spans: sent.append(len(list(spans))) or None, content=False)
    sending._lose = said  # as where the terminal is gone
    sending._send, send = lambda spans: "it is away", sending._send
    sending.start()
    sending.put(make_trajectory())
    block_until(lambda: surprises().get("otel", 0) > 0)
    sending._send = send
    sending.put(make_trajectory())
    block_until(lambda: len(sent) == 1)
    sending.end()


async def looks() -> None:
    """The viewer's loop."""
    seen = list[int]()

    def changed() -> list[str]:
        seen.append(1)
        if len(seen) < 3:
            raise OSError("a place is gone")
        return []

    watched = Events(changed)
    watched._listeners.add(events._Listener())  # pyright: ignore[reportPrivateUsage]
    async with watched.watching():
        while len(seen) < 3:
            await asyncio.sleep(0.01)


LOOPS = [deadlines, queue, launches, outcomes, commits, background, telemetry, looks]


@pytest.mark.parametrize("goes_on", LOOPS, ids=lambda loop: loop.__name__)
async def test_after_a_surprise_the_next_caller_is_answered(
    goes_on: Callable[[], Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "SECONDS_BETWEEN_LOOKS", 0.01)
    caplog.set_level(logging.ERROR)
    counted = sum(surprises().values())
    if asyncio.iscoroutinefunction(goes_on):
        await goes_on()
    else:
        await asyncio.to_thread(goes_on)
    assert sum(surprises().values()) > counted
    assert "goes on after an unexpected error" in caplog.text


def test_works_that_answer_from_another_thread_are_not_disturbed_by_a_waiter() -> None:
    """The thread that reports an outcome belongs to the workers and serves all callers."""
    told = list[BaseException | None]()

    class Telling(ThreadWorkers):
        def _run(self, work: Work, process: Any) -> None:
            try:
                super()._run(work, process)
            except BaseException as error:
                told.append(error)
            else:
                told.append(None)

    scheduler = Scheduler(Telling(1))
    done = threading.Event()

    def waiter(result: ExecutionResult) -> None:
        done.set()
        raise ValueError(result.value)

    scheduler.enter(Submission("value 1"), waiter)
    assert done.wait(MINUTE)
    block_until(lambda: told != [])
    assert told == [None]
    scheduler.close()
