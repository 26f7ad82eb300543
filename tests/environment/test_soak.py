"""Thousands of mixed calls leave nothing behind, and each is answered rightly.

A hundred thousand: `python -m tests.support.environment.soak`.
"""

from __future__ import annotations

import pytest

from tests.support.environment.soak import ROUNDS, Report, Sample, soak

pytestmark = pytest.mark.whole


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_thousands_of_calls_leave_nothing() -> None:
    report = await soak(6_400)
    assert sum(report.statuses.values()) == 6_400
    assert report.wrong == []
    assert report.leaks == []


async def test_hundreds_of_calls_are_answered_rightly() -> None:
    """And what they leave behind is seen by the host's own look at the end, which waits for what is on its way out."""
    report = await soak(160, rounds=2)
    assert sum(report.statuses.values()) == 160
    assert report.kinds["attack"] > 0
    assert report.wrong == []


def test_a_leak_would_be_seen() -> None:
    samples = [Sample(10, 50 + i, 8, 0, 3, 100.0 + i, 200.0) for i in range(ROUNDS)]
    assert Report(samples=samples).leaks == ["descriptors: +12.0"]
