"""Bounds of submissions, and of the data that an environment keeps in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

from hrm_agent.environment.base import Cell, Limits, Submission

__all__ = ["QUEUE_LIMIT", "Bounds", "refusal"]

QUEUE_LIMIT = 100_000

_MEGABYTE = 1024 * 1024
_HUGE = 10**18
_MAX_UTF8 = 4
"""Maximum number of bytes of a character in UTF-8."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of an environment. A submission that exceeds a bound ends with status `invalid_call`.
    If kept data exceeds a bound, the oldest is dropped.
    """

    code_bytes: int = _MEGABYTE
    """Size of the code of one call, in bytes of UTF-8."""
    name_characters: int = 1024
    """Length of `session`, `id` and `run`."""
    history_cells: int = 2000
    """Cells of one session, both in a submission and in memory."""
    history_bytes: int = 4 * _MEGABYTE
    """Size of the code of one session's cells together, in characters."""
    priority: int = 100
    """Largest priority; the smallest is its negative."""
    limits: Limits = field(
        default_factory=lambda: Limits(3600.0, 3600.0, 64 * 1024 * _MEGABYTE, 64 * _MEGABYTE)
    )
    """Largest limits of a call."""
    deadline_seconds: float = 7 * 86400.0
    """Longest deadline in seconds from now, a week. The shortest is 0."""
    queue: int = QUEUE_LIMIT
    """Number of calls that wait in the queue."""
    answers: int = 10_000
    """Number of outcomes kept, by the id of the call, for calls that are submitted again."""
    answers_bytes: int = 64 * _MEGABYTE
    """Size of all kept outcomes together, in bytes."""
    sessions: int = 10_000
    """Number of sessions without a process whose cells are remembered."""
    sessions_bytes: int = 256 * _MEGABYTE
    """Size of all remembered cells together, in characters."""


def refusal(submission: Submission, bounds: Bounds) -> str:
    """First problem of a submission, with the name of its field (empty if it is valid)."""
    return next(_faults(submission, bounds), "")


def _faults(submission: Submission, bounds: Bounds) -> Iterator[str]:
    code = submission.code
    most_bytes = bounds.code_bytes
    if (
        len(code) * _MAX_UTF8 > most_bytes
        and len(code.encode("utf-8", "surrogatepass")) > most_bytes
    ):
        yield f"`code` is larger than {most_bytes:,} bytes."
    for name in ("session", "id", "run"):
        if len(getattr(submission, name) or "") > bounds.name_characters:
            yield f"`{name}` is longer than {bounds.name_characters:,} characters."
    for name in _LIMITS:
        value = getattr(submission.limits, name)
        top = getattr(bounds.limits, name)
        if not 0 < value <= top:  # also refuses NaN
            yield f"`limits.{name}` is {_shown(value)}: it must be above 0 and at most {top:,}."
    if not -bounds.priority <= submission.priority <= bounds.priority:
        yield (
            f"`priority` is {_shown(submission.priority)}: it must be from {-bounds.priority} to"
            f" {bounds.priority}."
        )
    seconds = submission.deadline_seconds
    most = bounds.deadline_seconds
    if seconds is not None and not 0 <= seconds <= most:  # also refuses NaN
        yield f"`deadline_seconds` is {_shown(seconds)}: it must be from 0 to {most:,.0f}."
    if submission.history is not None:
        yield from _faulty_history(submission, submission.history, bounds)


def _faulty_history(
    submission: Submission, history: Sequence[Cell], bounds: Bounds
) -> Iterator[str]:
    if submission.session is None:
        yield "`history` is given, but no `session`."
    if len(history) > bounds.history_cells:
        yield f"`history` has {len(history):,} cells, more than {bounds.history_cells:,}."
    if sum(len(cell.code) for cell in history) > bounds.history_bytes:
        yield f"`history` is larger than {bounds.history_bytes:,} bytes."


def _shown(number: float) -> str:
    """Number as text. A number with more than 18 digits is only described, since Python refuses to
    format numbers with thousands of digits.
    """
    return (
        str(number)
        if isinstance(number, float) or abs(number) < _HUGE
        else "a number of more than 18 digits"
    )


_LIMITS = tuple(each.name for each in fields(Limits))
