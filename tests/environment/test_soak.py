"""Thousands of mixed calls leave nothing behind, and each is answered rightly.

A hundred thousand: `python -m tests.support.environment.soak`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environment.attacks.host import descendants
from tests.support.environment.soak import ROUNDS, Report, Sample, sample, soak

pytestmark = pytest.mark.whole


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_thousands_of_calls_leave_nothing() -> None:
    report = await soak(3_200)
    assert sum(report.statuses.values()) == 3_200
    assert report.wrong == []
    assert report.leaks == []


async def test_hundreds_of_calls_are_answered_rightly() -> None:
    """Leftovers are found by the host's check at the end, which waits for processes that are
    ending.
    """
    report = await soak(160, rounds=2)
    assert sum(report.statuses.values()) == 160
    assert report.kinds["attack"] > 0
    assert report.wrong == []


def test_what_another_test_runs_is_not_counted(tmp_path: Path) -> None:
    """A Ray cluster, say, that stood below the same process before."""
    known = descendants(os.getpid())
    hold = "held = b'x' * 2**26; print(flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-S", "-c", hold], stdin=pipe, stdout=pipe) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"\n"
        counted = sample(tmp_path, known)
        beside = sample(tmp_path, known | {other.pid})
        other.communicate(b"\n")
    assert counted.processes == beside.processes + 1
    assert counted.below_mib > beside.below_mib + 64


def test_a_leak_would_be_seen() -> None:
    samples = [Sample(10, 50 + i, 8, 0, 3, 100.0 + i, 200.0) for i in range(ROUNDS)]
    assert Report(samples=samples).leaks == ["descriptors: +12.0"]
