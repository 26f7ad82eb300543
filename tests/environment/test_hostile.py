"""Hostile results by a seed: each call has a typed outcome of its own, and the next client's call
is answered.
"""

from __future__ import annotations

import pytest

from hrm_agent.environment import LocalEnvironment
from hrm_agent.trajectory import ToolStatus
from tests.support.environment.contract import gauge
from tests.support.environment.hostile import (
    PIECES,
    Figures,
    attack,
    hostile_calls,
    read_hostile_files,
)


async def attacked(seed: int, count: int, parts: tuple[str, ...] = tuple(PIECES)) -> Figures:
    environment = LocalEnvironment(slots=3)
    figures = await attack(environment, list(hostile_calls(seed, count, parts)))
    assert await environment.check_health(60) == ""
    assert await gauge(environment, "worker_faults") == await gauge(environment, "slot_deaths") == 0
    await environment.close()
    return figures


@pytest.mark.whole
async def test_hostile_calls_have_outcomes_of_their_own_and_harm_nobody_else() -> None:
    figures = await attacked(7, 126)
    assert figures.wrong == []
    assert (figures.calls, figures.others) == (126, 126)


@pytest.mark.whole
async def test_who_ends_by_signals_and_exit_codes_has_failed_or_not() -> None:
    figures = await attacked(8, 60, ("signals", "names"))
    assert figures.wrong == []
    assert set(figures.statuses) <= {ToolStatus.OK, ToolStatus.ERROR}


def test_whatever_stands_in_the_files_of_a_call_is_read() -> None:
    assert read_hostile_files(7, 300) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_many_hostile_calls_and_readings() -> None:
    assert read_hostile_files(9, 10_000) == []
    figures = await attacked(9, 600)
    assert (figures.calls, figures.wrong) == (600, [])
