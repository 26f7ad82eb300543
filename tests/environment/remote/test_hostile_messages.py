"""Hostile messages of a client: each gets an answer of its own, and the next call of another client
is answered correctly.

For thousands, run `python -m tests.support.environment.hostile_messages --cases 5000`.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support.environment.hostile_messages import fuzzed

pytestmark = pytest.mark.whole
CASES, SEED = 300, 7


async def test_hostile_messages_are_refused_or_answered_one_by_one() -> None:
    fuzz = await asyncio.to_thread(fuzzed, CASES, SEED)
    assert fuzz.wrong == []
    assert fuzz.ends.total() == CASES
    assert {end.partition(":")[0] for end in fuzz.ends} == {
        "run",
        "batch",
        "session",
        "stream",
        "snippet",
    }
