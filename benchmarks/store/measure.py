"""Clock and CPU seconds of a piece of work, the server's included,
and the best of a few attempts.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import psutil

__all__ = ["Row", "Spent", "best", "spent"]

Row = dict[str, Any]


class Spent:
    """Filled in when the block ends."""

    wall = 0.0
    cpu = 0.0


def _cpu_seconds() -> float:
    """Of this process, its children, and their dead children."""
    process = psutil.Process()
    total = 0.0
    for member in [process, *process.children(recursive=True)]:
        try:
            total += sum(member.cpu_times()[:4])
        # a server's backend that has just ended: its parent has its seconds
        except psutil.NoSuchProcess:
            continue
    return total


@contextmanager
def spent() -> Generator[Spent]:
    """Measure the block."""
    found = Spent()
    cpu, wall = _cpu_seconds(), time.perf_counter()
    yield found
    found.wall = time.perf_counter() - wall
    found.cpu = _cpu_seconds() - cpu


def best(rows: list[Row], *given: str) -> list[Row]:
    """Of the rows that agree in `given` the one with the shortest clock: neighbours only ever add
    to it.
    """
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = tuple(row[name] for name in given)
        if key not in found or row["seconds"] < found[key]["seconds"]:
            found[key] = row
    return list(found.values())
