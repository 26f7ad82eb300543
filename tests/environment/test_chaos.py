"""Slots and fork servers are killed while calls run: every call ends, none wrongly, none is lost,
none is run twice for one id, and they begin in the order in which they came.

What runs in a sandbox has no effect outside, so that a second run is seen by its answer: each call
draws a random number, and all who submit it under its id have to be told the same.

By default the kills come at chosen points, of which it is known what they hit (`killing`); in the
slow set at moments that nobody chose, among thousands of calls.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest

from hrm_agent.environment import Environment, ExecutionResult, LocalEnvironment
from hrm_agent.environment.base import Submission
from hrm_agent.environment.remote.client import RemoteEnvironment
from hrm_agent.testing import wait_until
from hrm_agent.trajectory import ToolStatus
from tests.environment.attacks.host import orphans
from tests.support.environment.contract import LONG, run_batch
from tests.support.environment.held import HOLD, let_go, until_held
from tests.support.environment.killing import FORK_SERVER, SLOT, ChosenKills, at_depth
from tests.support.environment.served import TOKEN, ServerProcess

pytestmark = pytest.mark.whole

ZYGOTE_SHARE = 0.1
ROUNDS = 6


class Killer:
    """Kills a slot, or now and then a fork server with all its slots."""

    def __init__(self, seconds: float, *, zygotes: bool = True) -> None:
        self._seconds = seconds
        self._zygotes = zygotes
        self._chance = random.Random(7)
        self._stop = threading.Event()
        self.killed: Counter[str] = Counter()

    def run(self) -> None:
        while not self._stop.wait(self._chance.uniform(0.5, 1.5) * self._seconds):
            zygote = self._zygotes and self._chance.random() < ZYGOTE_SHARE
            victims = list(at_depth(FORK_SERVER if zygote else SLOT))
            if victims:
                with suppress(ProcessLookupError):
                    os.kill(self._chance.choice(victims), signal.SIGKILL)
                    self.killed["zygote" if zygote else "slot"] += 1

    def stop(self) -> None:
        self._stop.set()


@contextmanager
def killing(seconds: float, *, zygotes: bool = True) -> Iterator[Killer]:
    killer = Killer(seconds, zygotes=zygotes)
    thread = threading.Thread(target=killer.run)
    thread.start()
    try:
        yield killer
    finally:
        killer.stop()
        thread.join()


def call(number: int, name: str = "") -> Submission:
    code = f"import os\nprint({number})\n[{number} * 7, os.urandom(8).hex()]"
    return Submission(code, limits=LONG, id=f"{name}{number}")


def is_right(number: int, result: ExecutionResult) -> bool:
    shown = result.value or ""
    return (
        result.status is ToolStatus.OK
        and result.stdout == f"{number}\n"
        and shown.startswith(f"[{number * 7}, ")
    )


def check(results: list[ExecutionResult], killer: Killer) -> None:
    """Assert that every result is right, or reported as lost by the infrastructure. Losses are
    rare, since a lost call is run once more.
    """
    assert killer.killed["slot"] > 0
    lost = [result for result in results if result.status is ToolStatus.INFRASTRUCTURE]
    wrong = [
        result
        for number, result in enumerate(results)
        if result.status is not ToolStatus.INFRASTRUCTURE and not is_right(number, result)
    ]
    assert wrong == []
    assert len(lost) <= 2 + sum(killer.killed.values()) // 4, lost[:3]
    assert all(result.attempt == 2 for result in lost)
    assert {result.attempt for result in results} <= {1, 2}


async def storm(calls: int, clients: int, seconds: float) -> None:
    """Each call is submitted twice at the same time, and once more when all is over."""
    environment = LocalEnvironment(slots=4)
    await environment.execute("import numpy")
    numbers = iter(range(calls))
    results: dict[int, ExecutionResult] = {}

    async def client() -> None:
        for number in numbers:
            twins = await run_batch(environment, [call(number), call(number)])
            assert (twins[0].value, twins[0].status) == (twins[1].value, twins[1].status)
            results[number] = twins[0]

    with killing(seconds) as killer:
        await asyncio.gather(*(client() for _ in range(clients)))
    check([results[number] for number in range(calls)], killer)
    for number in range(max(0, calls - 500), calls):  # answers are kept within bounds
        again = await environment.run(call(number))
        assert is_right(number, again)
        assert results[number].status is ToolStatus.INFRASTRUCTURE or again == results[number]
    await environment.close()


async def test_slots_and_fork_servers_are_killed_during_calls() -> None:
    """Each call is submitted twice at the same time, and once more when all is over."""
    environment = LocalEnvironment(slots=4)
    kills, results = ChosenKills(environment), list[ExecutionResult]()
    for round_ in range(ROUNDS):
        calls = [call(number) for number in range(round_ * 16, round_ * 16 + 16)]
        twins = run_batch(environment, [*calls, *calls])
        found = await kills.during(twins, nth=1 + round_ * 5 % 16, fork_server=round_ % 3 == 2)
        assert found[:16] == found[16:]
        results += found[:16]
    assert kills.killed == {"slot": 4, "fork server": 2}
    assert [result for number, result in enumerate(results) if not is_right(number, result)] == []
    assert {result.attempt for result in results} == {1, 2}
    assert sum(result.attempt == 2 for result in results) >= ROUNDS
    assert [await environment.run(call(number)) for number in range(len(results))] == results
    await environment.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_thousands_of_calls_are_answered_while_slots_and_fork_servers_are_killed() -> None:
    await storm(2_500, clients=16, seconds=0.2)


async def flood(calls: int, seconds: float) -> None:
    """Submit all calls at once. They begin in the order of submission, whatever is killed
    meanwhile.
    """
    environment = LocalEnvironment(slots=4)
    await environment.execute("1")
    began = ChosenKills(environment).began
    submitted = [call(number) for number in range(calls)]
    with killing(seconds, zygotes=False) as killer:
        results = await run_batch(environment, submitted)
    check(results, killer)
    assert list(dict.fromkeys(began)) == [each.code for each in submitted]
    await environment.close()


async def test_calls_begin_in_the_order_in_which_they_came() -> None:
    environment = LocalEnvironment(slots=4)
    kills = ChosenKills(environment)
    calls = [call(number) for number in range(60)]
    results = await kills.during(run_batch(environment, calls), nth=20)
    assert [result for number, result in enumerate(results) if not is_right(number, result)] == []
    assert results[19].attempt == 2
    first_tries = list(dict.fromkeys(kills.began))
    assert first_tries == [each.code for each in calls]
    assert Counter(kills.began)[calls[19].code] == 2
    await environment.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_thousands_submitted_at_once_are_all_answered_in_order_while_slots_are_killed() -> (
    None
):
    await flood(2_500, seconds=0.3)


async def episode(environment: Environment, name: str, cells: int) -> int:
    """Run the cells of a session and return the number of lost ones. Its total is right, or the
    outcome reports that the cell was lost.
    """
    known, lost = 0, 0
    for number in range(1, cells + 1):
        code = f"total = {number}\ntotal" if known == 0 else f"total += {number}\ntotal"
        result = await environment.execute(code, session=name, limits=LONG)
        if result.status is ToolStatus.INFRASTRUCTURE:
            await environment.end_session(name)
            known, lost = 0, lost + 1
        else:
            known += number
            assert (result.status, result.value) == (ToolStatus.OK, str(known)), result
    return lost


async def sessions_in_a_storm(sessions: int, cells: int, seconds: float) -> None:
    environment = LocalEnvironment(slots=4)
    await environment.execute("1")
    with killing(seconds) as killer:
        episodes = (episode(environment, f"episode {number}", cells) for number in range(sessions))
        lost = await asyncio.gather(*episodes)
    assert killer.killed["slot"] > 0
    assert sum(lost) <= sum(killer.killed.values()) * environment.slots
    await environment.close()


async def test_sessions_never_go_on_from_a_wrong_state() -> None:
    environment = LocalEnvironment(slots=4)
    kills, cells = ChosenKills(environment), 5

    async def go_on(name: str, round_: int) -> None:
        for number in range(round_ * cells, round_ * cells + cells):
            code = f"total = {number}\ntotal" if number == 0 else f"total += {number}\ntotal"
            result = await environment.execute(code, session=name, limits=LONG)
            assert (result.status, result.value) == (
                ToolStatus.OK,
                str(number * (number + 1) // 2),
            ), result

    for round_ in range(ROUNDS):
        together = asyncio.gather(*(go_on(f"episode {number}", round_) for number in range(6)))
        await kills.during(together, nth=3 + 7 * round_ % 24, fork_server=round_ % 3 == 2)
    assert kills.killed == {"slot": 4, "fork server": 2}
    assert "hrm_environment_rebuilt_cells_total 0\n" not in await environment.metrics()
    await environment.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_many_sessions_never_go_on_from_a_wrong_state() -> None:
    await sessions_in_a_storm(sessions=8, cells=200, seconds=0.3)


@contextmanager
def restarting(server: ServerProcess, seconds: float) -> Iterator[list[float]]:
    """Kill the server again and again, and start another one at its address. Yields the times of
    the kills.
    """
    stop, killed, chance = threading.Event(), list[float](), random.Random(11)

    def run() -> None:
        while not stop.wait(chance.uniform(0.5, 1.5) * seconds):
            server.restart()
            killed.append(time.monotonic())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join()


async def served_storm(folder: Path, calls: int, sessions: int, cells: int, seconds: float) -> None:
    before, server = orphans(), ServerProcess(folder)
    server.start()
    environment = RemoteEnvironment(server.url, token=TOKEN, patience_seconds=60)
    numbers = count()
    results: dict[int, ExecutionResult] = {}

    async def client() -> None:
        for number in numbers:
            results[number] = await environment.run(call(number))
            if number >= calls and len(killed) >= 2:
                return

    with restarting(server, seconds) as killed:
        episodes = (episode(environment, f"episode {number}", cells) for number in range(sessions))
        await asyncio.gather(*(client() for _ in range(8)), *episodes)
    await environment.close()
    server.kill()
    assert sorted(results) == list(range(len(results)))
    lost = [
        number for number, result in results.items() if result.status is ToolStatus.INFRASTRUCTURE
    ]
    assert [
        number for number in results if number not in lost and not is_right(number, results[number])
    ] == []
    assert len(lost) <= 2 + len(results) // 100
    await none_left(before)


async def none_left(before: set[int]) -> None:
    async def gone() -> bool:
        return orphans() <= before

    await wait_until(gone)


async def test_the_server_is_killed_during_calls(tmp_path: Path) -> None:
    """Twice: when so many calls were answered, and others are under way, of which one does not end
    by itself.
    """
    before, server = orphans(), ServerProcess(tmp_path)
    server.start()
    environment = RemoteEnvironment(server.url, token=TOKEN, patience_seconds=120)
    answered = asyncio.Semaphore(0)

    async def client(numbers: range) -> list[ExecutionResult]:
        results = list[ExecutionResult]()
        for number in numbers:
            results.append(await environment.run(call(number)))
            answered.release()
        return results

    held = asyncio.create_task(environment.execute(f"{HOLD}'held'", limits=LONG))
    clients = [asyncio.create_task(client(range(each * 25, each * 25 + 25))) for each in range(4)]
    sessions = [
        asyncio.create_task(episode(environment, f"episode {each}", 12)) for each in range(2)
    ]
    for _ in range(2):
        await until_held(below=server.pid)
        for _ in range(30):
            await answered.acquire()
        await asyncio.to_thread(server.restart)
    let_go(await until_held(below=server.pid))
    found = [result for results in await asyncio.gather(*clients) for result in results]
    assert [result for number, result in enumerate(found) if not is_right(number, result)] == []
    assert ((await held).value, (await held).attempt) == ("'held'", 3)
    await asyncio.gather(*sessions)
    await environment.close()
    server.kill()
    await none_left(before)


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_the_server_is_killed_during_thousands_of_calls(tmp_path: Path) -> None:
    await served_storm(tmp_path, calls=3_000, sessions=4, cells=100, seconds=4.0)
