"""Shared parts of the HTTP clients: waiting times between retries, and a limit of response
sizes.
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
    """Seconds that a `Retry-After` header requests, by a number or a date, at most `longest` (None
    if the header is missing or invalid).
    """
    if value is None:
        return None
    try:
        if _NUMBER.fullmatch(value.strip()):
            seconds = float(value)
        else:
            moment = parsedate_to_datetime(value)
            moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            seconds = (moment - datetime.now(UTC)).total_seconds()
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max(seconds, 0.0), longest)


def backoff(attempt: int, first: float, longest: float) -> float:
    """Seconds to wait after failure number `attempt`, counted from 0: doubling from `first` to
    `longest`, with jitter.

    Jitter keeps clients that failed together from retrying together.
    """
    return random.uniform(0.5, 1.0) * min(longest, first * 2.0 ** min(attempt, _MOST_DOUBLINGS))


async def bounded_body(
    parts: AsyncIterable[bytes], most: int, too_large: Exception
) -> AsyncIterator[bytes]:
    """Yield the parts of a body. Raises `too_large` once they have more than `most` bytes
    together.
    """
    size = 0
    async for part in parts:
        size += len(part)
        if size > most:
            raise too_large
        yield part
