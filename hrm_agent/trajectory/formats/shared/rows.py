"""Shared reading and writing of formats with one JSON object a line.

A format is a function from a trajectory to its rows. If a part of the trajectory has no form in the
format, the function yields `Skipped` instead of a row, or `Lacks` beside a row without this part.
So a file never contains a guess, and the export reports what is missing and why.

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
    """Placeholder for a row that could not be made from the record."""

    reason: str
    """Reason without ids. Equal reasons are counted together."""


class Lacks(NamedTuple):
    """Marker beside a row, one for each call whose messages or tools the row lacks."""

    reason: str
    """Reason without ids. Equal reasons are counted together."""


RowMaker = Callable[[Trajectory], Iterable[Row | Skipped | Lacks]]


@dataclass(slots=True)
class Report:
    """Result of an export."""

    trajectories: int = 0
    """Number of trajectories read, with or without a row."""
    rows: int = 0
    """Number of rows written."""
    left_out: Counter[str] = field(default_factory=Counter[str])
    """Reason -> number of rows left out."""
    lacking: Counter[str] = field(default_factory=Counter[str])
    """Reason -> number of calls with missing data in the rows written."""


def incomplete(trajectory: Trajectory) -> Skipped | None:
    """Reason to skip a trajectory whose first tokens are missing, such as a fork whose lineage is
    in another store (None if complete).
    """
    try:
        paths(trajectory.calls)
    except ValueError:
        return Skipped("its calls extend calls that are not on record")
    return None


def write_rows(trajectories: Iterable[Trajectory], path: Path, make: RowMaker) -> Report:
    """Write the rows of all trajectories, one a line. Without rows no file is written, and an
    existing file stays.
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
                try:
                    line = json.dumps(row, ensure_ascii=False, allow_nan=False)
                except (ValueError, TypeError):
                    line = json_line(row)
                yield line + "\n"


def read_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Rows as (place for messages, row). Raises `StoreError` naming a line that is not a JSON
    object.
    """
    with open_lines(path) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                place = f"{path}:{number}"
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise StoreError(
                        f"{place} is not JSON: {error}.", "Export it again, or correct the line."
                    ) from error
                if not isinstance(row, dict):
                    raise StoreError(
                        f"{place} is not a JSON object.", "Each line has to be one object: {...}."
                    )
                yield place, row


@contextmanager
def open_lines(path: Path) -> Generator[Iterable[str]]:
    """Lines of a text file. Raises `StoreError` if it cannot be read."""
    try:
        with path.open(encoding="utf-8") as file:
            yield file
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(
            f"{path} cannot be read: {error}.", "Name a file that `hrm-agent export` wrote."
        ) from error
