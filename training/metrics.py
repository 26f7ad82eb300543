"""What a run writes down while it goes on: one row a step, with the time that each phase took.

A row is appended before the checkpoint of its step. Where a run goes on from a checkpoint, the
steps after it are taken again and their old rows are dropped, so that the file never holds a step
twice.

Whoever reads the file reads its lines by `parse_row`, and names what stands in tables within a row
by `flattened`.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import psutil

from hrm_agent.basics.files import json_line, replacing

__all__ = [
    "METRICS_FILE",
    "NOT_FINITE",
    "MetricsLog",
    "Phases",
    "Row",
    "flattened",
    "parse_row",
    "read_metrics",
    "row_numbers",
]

METRICS_FILE = "metrics.jsonl"
"""In a run's folder."""
NOT_FINITE = "the gradient is not finite"
"""Why a step was not taken: the value of `skipped`."""
Row = dict[str, Any]
"""Metrics of a step by name: numbers, and `skipped` and `errors`, each a text or None."""


class MetricsLog:
    """`metrics.jsonl`, from step 0 up to and without `before_step`, then growing."""

    def __init__(self, path: Path, *, before_step: int = 0) -> None:
        self.path = path
        kept = [row for row in read_metrics(path) if row["step"] < before_step]
        with replacing(path) as part:
            part.write_text("".join(json_line(row) + "\n" for row in kept), encoding="utf-8")

    def append(self, row: Row) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json_line(row) + "\n")

    def sync(self) -> None:
        """Called before a checkpoint, after which these rows are not made again."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())


def read_metrics(path: Path) -> list[Row]:
    """All whole rows of a metrics file; a last line that a kill cut short is left out."""
    if not path.exists():
        return []
    rows: list[Row] = []
    for line in path.read_text(encoding="utf-8").split("\n"):
        row = parse_row(line)
        if row is None:
            break
        rows.append(row)
    return rows


def parse_row(line: str | bytes) -> Row | None:
    """A line of a metrics file; None for one that is no row."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = cast("Row", row).get("step") if isinstance(row, dict) else None
    counts = isinstance(step, int) and not isinstance(step, bool) and 0 <= step < 2**53
    return cast("Row", row) if counts else None


def row_numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row but its step, by name: those of a role are `roles/ROLE/NAME`. Text and
    nan are left out.
    """
    named = {name: _number(value) for name, value in flattened(row).items() if name != "step"}
    return {name: value for name, value in named.items() if math.isfinite(value)}


def flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables within tables as `outer/inner`."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            found |= flattened(cast("Mapping[str, Any]", value), f"{prefix}{name}/")
        else:
            found[f"{prefix}{name}"] = value
    return found


def _number(value: Any) -> float:
    try:
        return float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:
        return math.nan


class Phases:
    """Wall-clock and CPU seconds by phase; the CPU time of child processes (the sandbox) is
    included.
    """

    def __init__(self, *names: str) -> None:
        """`names`: phases that are told even if they do not come."""
        self._spent = {
            f"{name}{kind}": 0.0 for name in names for kind in ("_seconds", "_cpu_seconds")
        }

    @contextmanager
    def __call__(self, name: str) -> Generator[None]:
        wall, cpu = time.perf_counter(), _cpu_seconds()
        try:
            yield
        finally:
            self._spent[f"{name}_seconds"] = time.perf_counter() - wall
            self._spent[f"{name}_cpu_seconds"] = _cpu_seconds() - cpu

    def seconds(self) -> dict[str, float]:
        """`{phase}_seconds` and `{phase}_cpu_seconds` of the phases that have ended."""
        return dict(self._spent)


def _cpu_seconds() -> float:
    """CPU time of this process, its threads, its living children,
    and those children's dead ones.
    """
    total = time.process_time()
    for child in psutil.Process().children(recursive=True):
        try:
            total += sum(child.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total
