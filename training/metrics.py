"""Metrics file of a run: one row per step, with the time of each phase.

The row of a step is appended before the step's checkpoint is saved. When a run resumes from a
checkpoint, later steps are taken again and their old rows are removed, so that no step is in the
file twice.

Readers of the file use `parse_row` for its lines, and `flattened` for the names of values in nested
tables.
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
"""Name of the metrics file in a run's folder."""
NOT_FINITE = "the gradient is not finite"
"""Value of `skipped` for a step with a non-finite gradient."""
Row = dict[str, Any]
"""Metrics of a step by name. Values are numbers and nested tables, except for the texts `skipped`
and `errors` (None if there is none).
"""


class MetricsLog:
    """Writer of `metrics.jsonl`, which keeps the rows before `before_step` and appends new ones."""

    def __init__(self, path: Path, *, before_step: int = 0) -> None:
        self.path = path
        kept = [row for row in read_metrics(path) if row["step"] < before_step]
        with replacing(path) as part:
            part.write_text("".join(json_line(row) + "\n" for row in kept), encoding="utf-8")

    def append(self, row: Row) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json_line(row) + "\n")

    def sync(self) -> None:
        """Sync the file to disk. This is done before a checkpoint is saved, since the rows of
        earlier steps are not written again afterwards.
        """
        with self.path.open("rb") as file:
            os.fsync(file.fileno())


def read_metrics(path: Path) -> list[Row]:
    """Rows of a metrics file up to the first damaged line. A kill may leave one at the end."""
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
    """Parse a line of a metrics file (None if it is no row)."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = cast("Row", row).get("step") if isinstance(row, dict) else None
    counts = isinstance(step, int) and not isinstance(step, bool) and 0 <= step < 2**53
    return cast("Row", row) if counts else None


def row_numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Numbers of a row by name, without the step number, texts and nan. A metric of a role is named
    `roles/ROLE/NAME`.
    """
    named = {name: _number(value) for name, value in flattened(row).items() if name != "step"}
    return {name: value for name, value in named.items() if math.isfinite(value)}


def flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables to names `outer/inner`."""
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
    """Wall-clock and CPU seconds by phase, including CPU time of child processes (the sandbox)."""

    def __init__(self, *names: str) -> None:
        """`names`: phases that are reported (as 0) even if they do not occur."""
        self._spent = {
            f"{name}{kind}": 0.0 for name in names for kind in ("_seconds", "_cpu_seconds")
        }

    @contextmanager
    def __call__(self, name: str) -> Generator[None]:
        wall = time.perf_counter()
        cpu = _cpu_seconds()
        try:
            yield
        finally:
            self._spent[f"{name}_seconds"] = time.perf_counter() - wall
            self._spent[f"{name}_cpu_seconds"] = _cpu_seconds() - cpu

    def seconds(self) -> dict[str, float]:
        """Values `{phase}_seconds` and `{phase}_cpu_seconds` of all phases that have ended. Phases
        named at the start that have not ended have 0.
        """
        return dict(self._spent)


def _cpu_seconds() -> float:
    """CPU time of this process with its threads, of its living child processes, and of their
    finished children.
    """
    total = time.process_time()
    for child in psutil.Process().children(recursive=True):
        try:
            total += sum(child.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total
