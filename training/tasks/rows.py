"""Tasks from the rows of a table: roles of the columns, and requirements for a row.

GSM8K's answers, a worked solution that ends with `#### 18`, are supported: the text after the last
`####` is the reference. Statistics pair problems by their ids, so a duplicate id is an error.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hrm_agent.basics.unicode import find_surrogate
from hrm_agent.errors import TaskError, nearest
from hrm_agent.training.tasks.base import Task, Verifier
from hrm_agent.training.tasks.spec import Columns
from hrm_agent.training.tasks.verify import exact_verifier
from hrm_agent.trajectory import derive_seed

__all__ = ["TableRow", "plain_text", "reference_answer", "tasks_of_rows"]


@dataclass(frozen=True, slots=True)
class TableRow:
    """Row of a table."""

    where: str
    """Location as text: `rows.jsonl, line 3`."""
    id: str
    """Identifier if no column holds one."""
    values: Mapping[str, Any]
    """Values by column."""
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    """Metadata stored with the task, as JSON."""


def tasks_of_rows(
    family: str,
    rows: Iterable[TableRow],
    columns: Columns,
    *,
    split: str,
    seed: int,
    verifier: Callable[[str], Verifier] = exact_verifier,
) -> list[Task]:
    """Turn rows into tasks, in an order drawn from the seed. `family`: the name as given to
    `--tasks`.
    """
    listed = list(rows)
    tasks = [_task(family, row, columns, verifier) for row in listed]
    _no_id_twice(listed, tasks)
    # the seed is named after the first of these families, which keeps its order
    random.Random(derive_seed(seed, "jsonl", split)).shuffle(tasks)
    return tasks


def _no_id_twice(rows: Sequence[TableRow], tasks: Sequence[Task]) -> None:
    for name, times in Counter(task.id for task in tasks).most_common(1):
        if times > 1:
            places = ", ".join(
                row.where for row, task in zip(rows, tasks, strict=True) if task.id == name
            )
            raise TaskError(
                f"The id {name!r} stands twice: {places}.", "Make it unique, or leave ?id= out."
            )


def _task(
    family: str, row: TableRow, columns: Columns, verifier: Callable[[str], Verifier]
) -> Task:
    answer = _answer(row, columns["answer"]) if columns["answer"] else None
    return Task(
        id=_value(row, "id", columns["id"]) if columns["id"] else row.id,
        family=family,
        prompt=_value(row, "question", columns["question"]),
        verify=None if answer is None else verifier(answer),
        answer=answer,
        metadata=row.metadata,
    )


def _answer(row: TableRow, column: str) -> str:
    answer = reference_answer(_value(row, "answer", column))
    if not answer:  # an empty box would be right
        raise TaskError(
            f"{row.where}: the answer {column!r} is empty.", "Give it, or leave the row out."
        )
    return answer


def _value(row: TableRow, role: str, column: str) -> str:
    if column not in row.values:
        known = row.values
        hint = (
            f"{nearest(column, known)} Name the key with ?{role}=KEY; the row has"
            f" {', '.join(known) or 'none'}."
        )
        raise TaskError(f"{row.where}: no key {column!r}.", hint.strip())
    return plain_text(row.values[column], f"{row.where}: {column!r}")


def plain_text(value: Any, what: str) -> str:
    """Text, or a number as text. Raises `TaskError` for other types. `what` names the value."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TaskError(f"{what} is a {type(value).__name__}.", "It must be a text or a number.")
    if isinstance(value, float) and not math.isfinite(value):
        raise TaskError(f"{what} is {value}.", "It must be a text or a number.")
    text = str(value)
    if find_surrogate(text) is not None:
        raise TaskError(
            f"{what} holds half a character.", "Both halves of a \\uD83D\\uDE00 are needed."
        )
    return text


def reference_answer(answer: str) -> str:
    """Text after the last `####`, or the whole text if there is none."""
    return answer.rpartition("####")[2].strip()
