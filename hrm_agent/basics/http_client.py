"""What our HTTP clients share: how long they wait before they ask again, and a limit on what they
read.
"""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterable, AsyncIterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

__all__ = ["backoff", "bounded_body", "retry_after"]

_NUMBER = re.compile(r"\d+(\.\d*)?", re.ASCII)
_MOST_DOUBLINGS = 60


def retry_after(value: str | None, longest: float) -> float | None:
    """Seconds that a `Retry-After` header asks for, by number or date, at most `longest`; None if
    it says nothing.
    """
    if value is None:
        return None
    try:
        seconds = float(value) if _NUMBER.fullmatch(value.strip()) else _seconds_until(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max(seconds, 0.0), longest)


def _seconds_until(date: str) -> float:
    moment = parsedate_to_datetime(date)
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (moment - datetime.now(UTC)).total_seconds()


def backoff(attempt: int, first: float, longest: float) -> float:
    """Seconds to wait after failure number `attempt`, counted from 0: doubling from `first` to
    `longest`, with jitter.

    Those who were sent away together do not come back together.
    """
    return random.uniform(0.5, 1.0) * min(longest, first * 2.0 ** min(attempt, _MOST_DOUBLINGS))


async def bounded_body(
    parts: AsyncIterable[bytes], most: int, too_large: Exception
) -> AsyncIterator[bytes]:
    """The parts of a body; raises `too_large` once they are more than `most` bytes together."""
    size = 0
    async for part in parts:
        size += len(part)
        if size > most:
            raise too_large
        yield part
