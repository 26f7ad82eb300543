"""`kill -9` at any moment: no finished work is repeated, lost or duplicated.

Requests are counted outside the killed process, in a log that the engine, the sandbox and the nodes
append to. Finished work is read from the store between two kills. The final record is that of an
undisturbed run.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.runtime.settings import Durability
from tests.support.graphs.kill_driver import CALLS, GRAPHS, Plan
from tests.support.graphs.kills import (
    Driver,
    check_asked,
    check_campaign,
    check_log,
    cut_short,
    done_in,
    fresh,
    killed,
    killed_often,
    log_of,
    numbers,
    plan_in,
    record_of,
    untouched_record,
)
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.whole

BODIES = ("process", "power", "postgres")
DURABILITY = ("steps", "calls")


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    opened = Driver()
    yield opened
    opened.close()


@pytest.mark.parametrize("durability", DURABILITY)
def test_killed_forks(durability: Durability, driver: Driver, tmp_path: Path) -> None:
    """All three graphs at once, in one store."""
    plan = plan_in(tmp_path / "killed", tasks=4, sandbox=False, durability=durability)
    untouched = untouched_record(driver, plan, tmp_path / "alone")
    moments = [12, 0, 7, 1, 19, 0, 15]
    assert check_campaign(driver.start, plan, untouched, iter(moments), len(moments)) == len(
        moments
    )


@pytest.mark.parametrize(
    ("durability", "further", "lost"),
    [
        ("steps", 0, {"model": 16, "tool": 0}),
        ("calls", 0, {"model": 16, "tool": 16}),
        ("calls", 1, {"model": 15, "tool": 0}),
    ],
)
def test_the_most_that_a_kill_repeats(
    durability: Durability, further: int, lost: dict[str, int], driver: Driver, tmp_path: Path
) -> None:
    """Repeats are exactly the work that had begun and was not on record: 8 tasks with 2 branches,
    each of which asks a model for the second time. With durability `calls`, earlier tool calls are
    part of the next commit, which never comes. That commit may also be the one of the first
    answers, with which one task goes on to its third branch (`further`).
    """
    plan = plan_in(
        tmp_path / "killed", graphs=("reasoning",), tasks=8, sandbox=False, durability=durability
    )
    assert killed(driver.start, replace(plan, gathers=True, dies_at=8 + 3 * 16 + further))
    asked, before = log_of(plan), done_in(plan)
    assert cut_short(plan, asked, before) == lost
    assert not killed(driver.start, plan)
    again = log_of(plan)[len(asked) :]
    check_asked(before, again)
    assert set(asked) & set(again) == set(asked) - before.lines
    assert record_of(plan) == untouched_record(driver, plan, tmp_path / "alone")


def test_processes_killed_and_terminated(driver: Driver, tmp_path: Path) -> None:
    """Processes are killed with their sandbox. SIGTERM, which a scheduler sends before SIGKILL,
    ends a process in the same way.
    """
    plan = plan_in(tmp_path / "killed", tasks=2)
    untouched = untouched_record(driver, replace(plan, sandbox=False), tmp_path / "alone")
    for number in (signal.SIGKILL, signal.SIGTERM):
        before, logged = done_in(plan), len(log_of(plan))
        assert killed(driver.start, replace(plan, dies_at=10, dies_of=int(number)))
        check_asked(before, log_of(plan)[logged:])
    _, log = killed_often(driver.start, replace(plan, sandbox=False), iter(()), 0)
    check_log(log, plan, 2)
    assert record_of(plan) == untouched


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("durability", DURABILITY)
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("body", BODIES)
def test_killed_often(
    body: str, graph: str, durability: Durability, driver: Driver, tmp_path: Path, request: Any
) -> None:
    """3 kills on each, as many runs as that takes: each a moment after a line of the log."""
    base = Plan("", graphs=(graph,), tasks=8, sandbox=False, durability=durability)
    untouched = untouched_record(driver, base, tmp_path / "alone")
    moments = numbers(f"{body} {graph}", sum(CALLS[graph]) * 3)
    kills, runs = 0, 0
    while kills < 3:
        folder = tmp_path / str(runs)
        plan = replace(base, folder=str(folder), url=url_of(body, folder, request), later=0.02)
        folder.mkdir(parents=True)
        kills += check_campaign(driver.start, plan, untouched, moments, 3 - kills)
        runs += 1


def url_of(body: str, folder: Path, request: Any) -> str:
    if body == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.create_database()
        request.addfinalizer(lambda: server.drop_database(url))
        return url
    return f"sqlite:///{folder}/store.db" + ("?level=power" if body == "power" else "")


@pytest.mark.slow
def test_killed_processes(driver: Driver, tmp_path: Path) -> None:
    """Processes start afresh, as a user's do, each with its sandbox."""
    plan = plan_in(tmp_path / "killed", tasks=6)
    untouched = untouched_record(driver, replace(plan, sandbox=False), tmp_path / "alone")
    moments = [14, 0, 9, 3, 17, 1, 11, 6]
    assert check_campaign(fresh, plan, untouched, iter(moments), len(moments)) == len(moments)
