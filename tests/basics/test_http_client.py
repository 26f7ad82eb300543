"""Waiting before a retry, and the end of a response that is read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from hrm_agent.basics.http_client import backoff, bounded_body, retry_after


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("nan", None),
        ("²", None),
        ("0", 0.0),
        ("0.5", 0.5),
        (" 7 ", 7.0),
        ("9" * 400, 100.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("Thu, 31 Dec 9999 23:59:59 GMT", 100.0),
    ],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert retry_after(value, 100.0) == seconds


def test_retry_after_a_date() -> None:
    seconds = retry_after(
        format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True), 7200.0
    )
    assert seconds is not None and 1800 < seconds <= 3600


def test_pauses_double_up_to_the_longest_and_are_as_long_as_was_asked() -> None:
    for attempt, most in ((0, 1.0), (1, 2.0), (2, 4.0), (3, 5.0), (10**6, 5.0)):
        assert most / 2 <= backoff(attempt, 1.0, 5.0) <= most


async def test_a_body_ends_at_its_limit() -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"ab"

    assert [part async for part in bounded_body(parts(), 6, ValueError())] == [b"ab"] * 3
    with pytest.raises(ValueError, match="too much"):
        _ = [part async for part in bounded_body(parts(), 5, ValueError("too much"))]
