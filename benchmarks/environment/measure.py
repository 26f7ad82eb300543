"""Measurement of clients that call one after the other: wall clock, and CPU of every process
involved.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from benchmarks.environment.workloads import Answer, Workload

__all__ = ["Call", "Effort", "Row", "at", "cpu_seconds", "measured", "row"]

Row = dict[str, Any]
Call = Callable[[Workload, int], Awaitable[Sequence[Answer]]]
"""Request of a client, one call or a batch, that returns the results of its calls."""


@dataclass(frozen=True)
class Effort:
    """Limits of a measurement, whichever comes first. Each client makes at least one call."""

    calls: int
    seconds: float


def cpu_seconds() -> float:
    """CPU seconds of this process and its descendants. Seconds of ended processes are in the
    figures of their parents.
    """
    process = psutil.Process()
    total = 0.0
    for member in [process, *process.children(recursive=True)]:
        with suppress(psutil.Error):  # ended meanwhile: its parent has its seconds
            total += sum(member.cpu_times()[:4])
    return total


async def measured(way: str, call: Call, workload: Workload, clients: int, effort: Effort) -> Row:
    """Measure `clients` that each wait for their answer before the next call."""
    latencies: list[float] = []
    verdicts: Counter[str] = Counter()
    used, started = cpu_seconds(), time.perf_counter()

    async def client(number: int) -> None:
        while True:
            asked = time.perf_counter()
            answers = await call(workload, number)
            latencies.append(time.perf_counter() - asked)
            verdicts.update(map(workload.verdict, answers))
            if verdicts.total() >= effort.calls or time.perf_counter() - started >= effort.seconds:
                return

    await asyncio.gather(*map(client, range(clients)))
    seconds = time.perf_counter() - started
    return row(way, workload, clients, latencies, verdicts, seconds, cpu_seconds() - used)


def row(
    way: str,
    workload: Workload,
    clients: int,
    latencies: Sequence[float],
    verdicts: Counter[str],
    seconds: float,
    cpu: float,
) -> Row:
    """Row of a measurement. `good/s` counts right answers only. CPU is per right answer, too, so
    that lost calls add to its cost.
    """
    ordered, good = sorted(latencies), verdicts["good"]
    return {
        "workload": workload.name,
        "way": way,
        "clients": clients,
        "good/s": good / seconds,
        "p50 ms": at(ordered, 0.5) * 1e3,
        "p99 ms": at(ordered, 0.99) * 1e3,
        "CPU us": cpu / good * 1e6 if good else None,
        "calls": verdicts.total(),
        "lost": verdicts["lost"],
        "wrong": verdicts["wrong"],
    }


def at(ordered: Sequence[float], share: float) -> float:
    """Quantile at `share` of ordered values (0 without values)."""
    return ordered[round(share * (len(ordered) - 1))] if ordered else 0.0
