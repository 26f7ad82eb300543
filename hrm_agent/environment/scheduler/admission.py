"""What an environment takes on: bounds of what is submitted, and of what is kept in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from hrm_agent.environment.base import Limits, Submission

__all__ = ["QUEUE_LIMIT", "Bounds", "refusal"]

QUEUE_LIMIT = 100_000

_MEGABYTE = 1024 * 1024
_HUGE = 10**18
_MAX_UTF8 = 4
"""Bytes of a character, at most."""


def _most() -> Limits:
    return Limits(3600.0, 3600.0, 64 * 1024 * _MEGABYTE, 64 * _MEGABYTE)


@dataclass(frozen=True, slots=True)
class Bounds:
    """A submission beyond one of them comes to `invalid_call`; what is kept beyond one is
    forgotten, oldest first.
    """

    code_bytes: int = _MEGABYTE
    """Of one call, as UTF-8."""
    name_characters: int = 1024
    """Of `session`, `id` and `run`."""
    history_cells: int = 2000
    """Of one session: those that are given, and those that are remembered."""
    history_bytes: int = 4 * _MEGABYTE
    """Code of one session's cells together, in characters."""
    priority: int = 100
    """Either side of 0."""
    limits: Limits = field(default_factory=_most)
    """The most that a call may ask for."""
    deadline_seconds: float = 7 * 86400.0
    """From now, a week; none is below 0."""
    queue: int = QUEUE_LIMIT
    """Calls that have not begun."""
    answers: int = 10_000
    """Outcomes kept for calls that are submitted again under their id."""
    answers_bytes: int = 64 * _MEGABYTE
    """Size of all kept outcomes together."""
    sessions: int = 10_000
    """Sessions without a process whose cells are remembered."""
    sessions_bytes: int = 256 * _MEGABYTE
    """Size of all remembered cells together, in characters."""


def refusal(submission: Submission, bounds: Bounds) -> str:
    """What is wrong with a submission, named by its field; empty if nothing is."""
    return next(_faults(submission, bounds), "")


def _faults(submission: Submission, bounds: Bounds) -> Iterator[str]:
    if not _fits(submission.code, bounds.code_bytes):
        yield f"`code` is larger than {bounds.code_bytes:,} bytes."
    for name in ("session", "id", "run"):
        if len(getattr(submission, name) or "") > bounds.name_characters:
            yield f"`{name}` is longer than {bounds.name_characters:,} characters."
    yield from _faulty_limits(submission.limits, bounds.limits)
    if not -bounds.priority <= submission.priority <= bounds.priority:
        yield (
            f"`priority` is {_shown(submission.priority)}: it must be from {-bounds.priority} to"
            f" {bounds.priority}."
        )
    seconds, most = submission.deadline_seconds, bounds.deadline_seconds
    if seconds is not None and not 0 <= seconds <= most:  # so is NaN refused
        yield f"`deadline_seconds` is {_shown(seconds)}: it must be from 0 to {most:,.0f}."
    if submission.history is not None:
        yield from _faulty_history(submission, bounds)


def _faulty_limits(limits: Limits, most: Limits) -> Iterator[str]:
    for name in _LIMITS:
        value, top = getattr(limits, name), getattr(most, name)
        if not 0 < value <= top:  # so is NaN refused
            yield f"`limits.{name}` is {_shown(value)}: it must be above 0 and at most {top:,}."


def _faulty_history(submission: Submission, bounds: Bounds) -> Iterator[str]:
    history = submission.history or ()
    if submission.session is None:
        yield "`history` is given, but no `session`."
    if len(history) > bounds.history_cells:
        yield f"`history` has {len(history):,} cells, more than {bounds.history_cells:,}."
    if sum(len(cell.code) for cell in history) > bounds.history_bytes:
        yield f"`history` is larger than {bounds.history_bytes:,} bytes."


def _shown(number: float) -> str:
    """The first digits of a number that has thousands: Python itself refuses to write them all."""
    return (
        str(number)
        if isinstance(number, float) or abs(number) < _HUGE
        else "a number of more than 18 digits"
    )


def _fits(text: str, limit: int) -> bool:
    return len(text) * _MAX_UTF8 <= limit or len(text.encode("utf-8", "surrogatepass")) <= limit


_LIMITS = tuple(each.name for each in fields(Limits))
