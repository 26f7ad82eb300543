"""Counts and times of an environment, in the text format of Prometheus (0.0.4).

The format is a few lines per metric. `prometheus_client` is not used: it would add a lock per
increment, although the counts are already under the scheduler's lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TypeVar

from hrm_agent.basics.guarded_loop import surprises
from hrm_agent.environment.base import ExecutionResult, SessionState
from hrm_agent.trajectory import ToolStatus

__all__ = ["Histogram", "Metrics"]

_T = TypeVar("_T")
_PREFIX = "hrm_environment"
_SECONDS = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
)
"""Upper edges of the histogram buckets, in seconds."""
_GAUGES = {
    "slots": "Calls that may run at once.",
    "slot_deaths": "Slots that died and were replaced.",
    "worker_faults": (
        "Unexpected errors of the thread that serves the slots, each of which ended one call or one"
        " slot."
    ),
    "running": "Slots in use.",
    "waiting": "Calls in the queue, including those that wait for a call of their session.",
    "outside": "Calls that wait for room in the queue.",
    "sessions_living": "Sessions with a process.",
    "sessions_known": "Sessions whose cells are remembered, including those with a process.",
    "answers": "Outcomes kept for calls that are submitted again.",
}
_COUNTERS = {
    "cancelled": "Calls whose last caller left before their outcome.",
    "repeated": "Submissions answered by an earlier call with their id.",
    "retries": "Calls put back into the queue because the infrastructure lost them.",
    "rebuilt_cells": "Cells run again to rebuild a session.",
}


class Histogram:
    """Histogram: counts of values by bucket, and their sum."""

    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(_SECONDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(_SECONDS, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str) -> Iterator[str]:
        totals = list(accumulate(self._counts))
        edges = (*(f"{edge:g}" for edge in _SECONDS), "+Inf")
        yield from (
            f'{name}_bucket{{le="{edge}"}} {total}'
            for edge, total in zip(edges, totals, strict=True)
        )
        yield f"{name}_sum {self._sum:.6f}"
        yield f"{name}_count {totals[-1]}"


class Metrics:
    """Metrics of an environment. Not thread-safe: the scheduler counts while it holds its lock."""

    def __init__(self) -> None:
        self.statuses: Counter[ToolStatus] = Counter()
        self.attempts: Counter[int] = Counter()
        self.sessions: Counter[SessionState] = Counter()
        self.events: Counter[str] = Counter()
        """Events by the names in `_COUNTERS`."""
        self.refused: Counter[str] = Counter()
        """Refused system calls by name."""
        self.queued = Histogram()
        self.wall = Histogram()

    def count(self, result: ExecutionResult) -> None:
        """Count the outcome of a call."""
        self.statuses[result.status] += 1
        self.attempts[result.attempt] += 1
        if result.session is not None:
            self.sessions[result.session] += 1
        self.refused.update(result.refused)
        self.queued.add(result.queued_seconds)
        self.wall.add(result.duration_seconds)

    def render(self, isolation: str, gauges: Mapping[str, float]) -> str:
        """Text of all metrics so far, and of the current `gauges` (names as in `_GAUGES`)."""
        return "\n".join([*self._lines(isolation, gauges), ""])

    def _lines(self, isolation: str, gauges: Mapping[str, float]) -> Iterator[str]:
        yield from _metric(
            "info",
            "gauge",
            "Isolation level of the environment.",
            [f'{{isolation="{isolation}"}} 1'],
        )
        yield from _labelled(
            "calls_total", "Calls, by outcome.", "status", self.statuses, list(ToolStatus)
        )
        yield from _labelled(
            "attempts_total",
            "Calls, by the attempt that ended them.",
            "attempt",
            self.attempts,
            [1, 2],
        )
        help_text = "Calls of sessions, by the state in which they found their session."
        yield from _labelled(
            "session_calls_total", help_text, "state", self.sessions, list(SessionState)
        )
        help_text = (
            "System calls that were refused to snippets. Of each snippet, the sixteen most frequent"
            " are counted."
        )
        yield from _labelled(
            "refused_total", help_text, "system_call", self.refused, sorted(self.refused)
        )
        help_text = "Unexpected errors in loops that serve all calls. The log has their tracebacks."
        found = surprises()
        yield from _labelled("loop_errors_total", help_text, "loop", found, sorted(found))
        for name, text in _COUNTERS.items():
            yield from _metric(f"{name}_total", "counter", text, [f" {self.events[name]}"])
        for name, text in _GAUGES.items():
            yield from _metric(name, "gauge", text, [f" {gauges.get(name, 0):g}"])
        yield from _histogram(
            "queue_seconds", "From submission to the start of the code.", self.queued
        )
        yield from _histogram("wall_seconds", "From the start to the end of the code.", self.wall)


def _metric(name: str, kind: str, text: str, samples: list[str]) -> Iterator[str]:
    yield f"# HELP {_PREFIX}_{name} {text}"
    yield f"# TYPE {_PREFIX}_{name} {kind}"
    yield from (f"{_PREFIX}_{name}{sample}" for sample in samples)


def _labelled(
    name: str, text: str, label: str, counts: Mapping[_T, int], values: Iterable[_T]
) -> Iterator[str]:
    samples = [f'{{{label}="{value}"}} {counts.get(value, 0)}' for value in values]
    yield from _metric(name, "counter", text, samples)


def _histogram(name: str, text: str, histogram: Histogram) -> Iterator[str]:
    yield from _metric(name, "histogram", text, [])
    yield from histogram.lines(f"{_PREFIX}_{name}")
