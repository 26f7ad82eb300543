"""Formats of one JSON object a line: what they share in writing and in reading.

A format is a function from a trajectory to its rows. Where something cannot be told in the format
it yields `Skipped` instead of a row, or `Lacks` beside one that does without it, so that a file
never holds a guess, and whoever exports is told what is missing and why.

Trajectories are taken one at a time, so that a store of any size is exported in the memory of its
largest run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from hrm_agent.basics.files import json_line, replacing
from hrm_agent.errors import StoreError
from hrm_agent.trajectory.forest import paths
from hrm_agent.trajectory.schema import Trajectory

__all__ = [
    "Lacks",
    "Report",
    "Row",
    "RowMaker",
    "Skipped",
    "incomplete",
    "open_lines",
    "read_rows",
    "write_rows",
]

Row = dict[str, Any]


class Skipped(NamedTuple):
    """Stands where a row would, had everything been on record."""

    reason: str
    """In words, without ids: equal reasons are counted together."""


class Lacks(NamedTuple):
    """Stands beside a row for each call whose messages or tools the row does without."""

    reason: str
    """In words, without ids: equal reasons are counted together."""


RowMaker = Callable[[Trajectory], Iterable[Row | Skipped | Lacks]]


@dataclass(slots=True)
class Report:
    """What an export came to."""

    trajectories: int = 0
    """Read, whether or not they gave a row."""
    rows: int = 0
    """Rows written."""
    left_out: Counter[str] = field(default_factory=Counter[str])
    """Reason -> how many rows."""
    lacking: Counter[str] = field(default_factory=Counter[str])
    """Reason -> how many calls in the rows that were written."""


def incomplete(trajectory: Trajectory) -> Skipped | None:
    """Where the tokens of a call's beginning are missing: a fork, say, whose lineage is in another
    store.
    """
    try:
        paths(trajectory.calls)
    except ValueError:
        return Skipped("its calls extend calls that are not on record")
    return None


def write_rows(trajectories: Iterable[Trajectory], path: Path, make: RowMaker) -> Report:
    """The rows of all trajectories, one a line. Without a row no file is written, and one that is
    there stays.
    """
    report = Report()
    lines = _lines(trajectories, make, report)
    first = next(lines, None)
    if first is None:
        return report
    # A lone surrogate, which UTF-8 cannot hold, becomes its JSON escape.
    with (
        replacing(path) as part,
        part.open("w", encoding="utf-8", errors="backslashreplace") as file,
    ):
        file.writelines(chain([first], lines))
    return report


def _lines(trajectories: Iterable[Trajectory], make: RowMaker, report: Report) -> Iterator[str]:
    for trajectory in trajectories:
        report.trajectories += 1
        for row in make(trajectory):
            if isinstance(row, Skipped):
                report.left_out[row.reason] += 1
            elif isinstance(row, Lacks):
                report.lacking[row.reason] += 1
            else:
                report.rows += 1
                yield _line(row) + "\n"


def _line(row: Row) -> str:
    """Strict JSON. Looking for what is not finite takes longer than writing, and there is seldom
    any.
    """
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError):
        return json_line(row)


def read_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Each row with its place, for messages. Raises `StoreError` naming a line that is not a JSON
    object.
    """
    with open_lines(path) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield f"{path}:{number}", _object(line, f"{path}:{number}")


def _object(line: str, place: str) -> Row:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise StoreError(
            f"{place} is not JSON: {error}.", "Export it again, or correct the line."
        ) from error
    if not isinstance(row, dict):
        raise StoreError(f"{place} is not a JSON object.", "Each line has to be one object: {...}.")
    return row


@contextmanager
def open_lines(path: Path) -> Generator[Iterable[str]]:
    """The lines of a text file. Raises `StoreError` if it cannot be read."""
    try:
        with path.open(encoding="utf-8") as file:
            yield file
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(
            f"{path} cannot be read: {error}.", "Name a file that `hrm-agent export` wrote."
        ) from error
