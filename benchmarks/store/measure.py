"""Wall-clock and CPU seconds of a piece of work, the server's seconds included, and the best of a
few attempts.
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
    """Seconds of a block, set when it ends."""

    wall = 0.0
    cpu = 0.0


def _cpu_seconds() -> float:
    """CPU seconds of this process and its children, including ended children."""
    process = psutil.Process()
    total = 0.0
    for member in [process, *process.children(recursive=True)]:
        try:
            total += sum(member.cpu_times()[:4])
        # a backend of the server ended meanwhile: its parent has its seconds
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
    """Rows with the shortest time, one for each set of values of `given`. Other load only adds to a
    time.
    """
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = tuple(row[name] for name in given)
        if key not in found or row["seconds"] < found[key]["seconds"]:
            found[key] = row
    return list(found.values())
