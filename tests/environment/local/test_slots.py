"""The thread that serves every slot: nothing ends it, and each surprise costs one call at most."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hrm_agent.environment import ExecutionResult, Limits, LocalEnvironment, Submission
from hrm_agent.environment.local import slot_table, slots
from hrm_agent.environment.local.slots import Wake
from hrm_agent.environment.sandbox import protocol
from hrm_agent.environment.scheduler.workers import Work
from hrm_agent.testing import block_until
from hrm_agent.trajectory import ToolStatus
from tests.environment.attacks.host import is_running
from tests.support.environment.contract import LONG, gauge
from tests.support.environment.killing import at_depth

pytestmark = pytest.mark.whole

OK, ERROR, INFRASTRUCTURE = ToolStatus.OK, ToolStatus.ERROR, ToolStatus.INFRASTRUCTURE


@pytest_asyncio.fixture
async def environment() -> AsyncIterator[LocalEnvironment]:
    environment = LocalEnvironment(slots=2)
    yield environment
    await environment.close()


async def is_well(environment: LocalEnvironment) -> bool:
    result = await environment.execute("6 * 7", limits=LONG)
    return (result.status, result.value) == (OK, "42") and await environment.check_health(60) == ""


def slots_of(environment: LocalEnvironment) -> set[int]:
    """Process ids of its bare ones: two steps below the process that its fork server was started
    as.
    """
    return set(at_depth(2, environment.pid))


def failing(
    error: BaseException, *, once: bool = True, then: Callable[..., Any]
) -> Callable[..., Any]:
    """Raises `error` when it is called first, or whenever it is called."""
    calls: list[int] = []

    def function(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if not once or len(calls) == 1:
            raise error
        return then(*args, **options)

    return function


@pytest.mark.parametrize(
    ("module", "name", "error", "status"),
    [
        # it lies in what the snippet left
        (slot_table, "outcome", ValueError("35 is not a valid Signals"), ERROR),
        # of this process: the call is run again
        (slot_table, "outcome", OSError(5, "Input/output error"), OK),
        (slot_table, "outcome", MemoryError(), OK),
        (slots, "Reply", RuntimeError("nobody knows"), OK),
        (slot_table.SlotTable, "set_idle", RuntimeError("nobody knows"), OK),
        (slot_table.SlotTable, "give_up_surplus", RuntimeError("nobody knows"), OK),
    ],
)
async def test_a_surprise_costs_one_call_and_is_counted_and_logged(
    environment: LocalEnvironment,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    module: Any,
    name: str,
    error: Exception,
    status: ToolStatus,
) -> None:
    assert await is_well(environment)
    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(module, name, failing(error, then=getattr(module, name)))
        result = await environment.execute("1", limits=LONG)
        assert await is_well(environment)
    assert (result.status, await gauge(environment, "worker_faults")) == (status, 1)
    assert "goes on" in caplog.text and type(error).__name__ in caplog.text


async def test_a_surprise_that_stays_is_the_fault_of_nobody_and_ends_with_its_cause(
    environment: LocalEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await is_well(environment)
    with monkeypatch.context() as patch:
        patch.setattr(
            slots, "Reply", failing(RuntimeError("it stays"), once=False, then=protocol.Reply)
        )
        results = await asyncio.gather(*(environment.execute("1", limits=LONG) for _ in range(4)))
        assert await environment.check_health(60) == ""
    assert {(result.status, result.attempt) for result in results} == {(INFRASTRUCTURE, 2)}
    assert await gauge(environment, "worker_faults") == 8
    assert await is_well(environment)


async def test_a_machine_that_starts_no_process_is_tried_again(
    environment: LocalEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OSError(11, "Resource temporarily unavailable")
    with monkeypatch.context() as patch:
        patch.setattr(slots, "ZygoteProcess", failing(error, once=False, then=slots.ZygoteProcess))
        result = await environment.execute("import numpy\n1", limits=LONG)
        assert await is_well(environment)
    assert result.status is INFRASTRUCTURE and "could not be started" in result.stderr
    again = await environment.execute("import numpy\n1", limits=LONG)
    assert again.status is OK


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, asyncio.CancelledError])
async def test_a_caller_that_raises_keeps_no_other_from_its_answer(
    environment: LocalEnvironment, error: type[BaseException]
) -> None:
    def raises(result: ExecutionResult) -> None:
        raise error(result.status)

    for _ in range(2):
        environment._scheduler.enter(Submission("1", limits=LONG), raises)  # pyright: ignore[reportPrivateUsage]
    results = await asyncio.gather(*(environment.execute("6 * 7", limits=LONG) for _ in range(4)))
    assert {result.value for result in results} == {"42"}
    assert await is_well(environment)


async def test_health_is_the_threads_own_word(
    environment: LocalEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await environment.check_health(60) == ""
    with monkeypatch.context() as patch:
        # a thread that does not turn
        patch.setattr(Wake, "answer", lambda self: os.eventfd_read(self.descriptor))
        assert "has not answered" in await environment.check_health(0.01)
    assert await environment.check_health(60) == ""
    await environment.close()
    assert "has not answered" in await environment.check_health(0.01)


async def test_the_death_of_one_slot_costs_the_others_nothing(
    environment: LocalEnvironment,
) -> None:
    await environment.warm_up()
    before = slots_of(environment)
    victim = min(before)
    os.kill(victim, signal.SIGKILL)
    block_until(lambda: not is_running(victim))
    for _ in before:  # the dead one is heard of, or found when it is to take a call
        assert await is_well(environment)
    assert before - {victim} <= slots_of(environment)


UNCLEAN = """
import array, os, socket, threading
for _ in range(40):
    try:
        pair = socket.socketpair()
        for one, other in (pair, pair[::-1]):
            given = array.array("i", [one.fileno(), other.fileno()])
            one.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)])
    except OSError:
        break
threading.Timer(0.05, os._exit, (0,)).start()
"""
"""Code whose process ends soon and leaves what its slot cannot clear away."""


@pytest.mark.parametrize(
    "code, status", [(UNCLEAN, ERROR), ("1", INFRASTRUCTURE)], ids=["its own", "the machine's"]
)
async def test_a_slot_that_dies_between_two_calls_of_a_session(
    environment: LocalEnvironment, code: str, status: ToolStatus
) -> None:
    """The next call, on its way meanwhile, is lost; the infrastructure is to blame if the code was
    not.
    """
    workers = environment._workers
    outcomes, ended = list[tuple[ToolStatus, bool]](), threading.Event()

    def done(result: ExecutionResult, lost: bool) -> None:
        outcomes.append((result.status, lost))
        ended.set()

    def go_on(result: ExecutionResult, lost: bool) -> None:
        """Continue from the slots' thread, which learns of the death only after this returns."""
        outcomes.append((result.status, lost))
        slot = workers._table.sessions[1]
        if status is INFRASTRUCTURE:
            for pid in slots_of(environment):
                os.kill(pid, signal.SIGKILL)
        assert select.select([slot.line], [], [], 60)[0]  # it has said so, or hung up
        workers.start(Work("2", Limits(), done, 1))

    workers.start(Work(code, LONG, go_on, 1, True))
    assert await asyncio.to_thread(ended.wait, 60)
    assert outcomes == [(OK, False), (status, True)]
    assert await is_well(environment)


async def test_slots_of_two_environments_are_different_users(environment: LocalEnvironment) -> None:
    other = LocalEnvironment(slots=2)
    for each in (environment, other):
        await each.warm_up()
    ordinary = os.getuid() != 0  # then there is one user for all

    def users() -> list[set[int]]:
        return [
            {Path(f"/proc/{pid}").stat().st_uid for pid in slots_of(each)}
            for each in (environment, other)
        ]

    # a new slot begins as root
    block_until(lambda: ordinary or not any(0 in each for each in users()))
    first, second = users()
    await other.close()
    assert first == second == {os.getuid()} if ordinary else first and second and not first & second


MANY_MAPS = """
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype, pages = ctypes.c_void_p, 6000
area = libc.mmap(None, ctypes.c_size_t(4096 * pages), 1, 0x22, -1, ctypes.c_size_t(0))
for page in range(0, pages, 2):
    libc.mprotect(ctypes.c_void_p(area + 4096 * page), ctypes.c_size_t(4096), 3)
for _ in range(8):
    if os.fork() == 0:
        time.sleep(60)
time.sleep(2.5)
os.kill(-1, 9)
"""


def cpu_of_slots(environment: LocalEnvironment) -> float:
    """CPU seconds of the slots themselves, without their children's."""
    stats = [Path(f"/proc/{pid}/stat").read_text() for pid in slots_of(environment)]
    fields = [stat.rpartition(")")[2].split() for stat in stats]
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


async def test_a_call_pays_for_being_looked_at() -> None:
    environment = LocalEnvironment(slots=1)
    assert await is_well(environment)
    before = cpu_of_slots(environment)
    result = await environment.execute(MANY_MAPS, limits=LONG)
    spent = cpu_of_slots(environment) - before
    await environment.close()
    assert result.status is OK
    assert spent > 0.05
    assert result.cpu_seconds > spent * 0.9
