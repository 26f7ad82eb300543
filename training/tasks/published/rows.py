"""Fields of published rows. The columns are fixed, so a file without them is another file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from hrm_agent.errors import TaskError, nearest
from hrm_agent.training.tasks.spec import file_of
from hrm_agent.training.tasks.tables import TableRow, json_rows, plain_text

__all__ = ["field", "options_of", "published_rows", "some", "text"]


def published_rows(spec: str, split: str, folder: Path | None) -> list[TableRow]:
    """Rows of the file of JSON lines that a spec names. Raises `TaskError` if it has none."""
    path, _ = file_of(spec, split, folder)
    return some(json_rows(path), path)


def some(rows: Iterator[TableRow], path: Path) -> list[TableRow]:
    """Rows as a list. Raises `TaskError` if there is none."""
    found = list(rows)
    if not found:
        raise TaskError(f"{path} has no rows.", "Name a file that has some.")
    return found


def options_of(family: str, spec: str, known: tuple[str, ...] = ()) -> dict[str, str]:
    """Parameters in the query of a spec. Raises `TaskError` for one that is not `known`."""
    given = dict(parse_qsl(spec.partition("?")[2], keep_blank_values=True))
    for name in given:
        if name not in known:
            hint = f"{nearest(name, known)} Known: {', '.join(known) or 'none'}.".strip()
            raise TaskError(f"{family}: has no parameter {name!r}.", hint)
    return given


def field(row: TableRow, name: str, kind: type | tuple[type, ...], what: str) -> Any:
    """Value of a column. Raises `TaskError` if it is missing or of another type. `what`: the type
    in words.
    """
    value = row.values.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        fault = "no" if name not in row.values else f"a {type(value).__name__} as"
        raise TaskError(
            f"{row.where}: {fault} {name!r}.",
            f"A published row has {what} there; this one has {', '.join(row.values)}.",
        )
    return value


def text(row: TableRow, name: str) -> str:
    """Text of a column, or a number as text. Raises `TaskError` if it is missing or empty."""
    found = plain_text(field(row, name, (str, int, float), "a text"), f"{row.where}: {name!r}")
    if not found.strip():
        raise TaskError(f"{row.where}: {name!r} is empty.", "Give it, or leave the row out.")
    return found
