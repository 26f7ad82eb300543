"""Tasks from a file of JSON lines: `jsonl:FILE?question=question&answer=answer`, and `aime:FILE` in the same way.

The query names the keys of a row that hold the problem and the reference answer, `question` and `answer` unless said
otherwise; `id` names the key of an identifier (without it, the line number). `answer=` says that there is no reference.

The answers of an `aime:` file are integers from 0 to 999, and nothing but such an integer is right (`042` is 42; `84/2`
and `42.0`, which `jsonl:` takes for 42, are not).

A file is one split. Where `{split}` stands in FILE it is replaced, so that `jsonl:gsm8k/{split}.jsonl` names both. The
order is a permutation of the rows drawn from the seed, and `count` takes at most that many from its beginning: no row
comes twice.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hrm_agent.errors import TaskError
from hrm_agent.training.tasks.base import Task
from hrm_agent.training.tasks.rows import TableRow, tasks_of_rows
from hrm_agent.training.tasks.spec import file_of, read_columns
from hrm_agent.training.tasks.verify import contest_integer, contest_verifier

__all__ = ["load_aime", "load_jsonl", "read_text"]


def load_jsonl(spec: str, *, split: str, seed: int, count: int | None = None, folder: Path | None = None) -> list[Task]:
    """At most `count` tasks of `FILE?query`, all of them for None. Raises `TaskError` naming file, line and fault."""
    path, query = file_of(spec, split, folder)
    columns = read_columns("jsonl", query)
    return tasks_of_rows(f"jsonl:{spec}", _rows(path), columns, split=split, seed=seed)[:count]


def load_aime(spec: str, *, split: str, seed: int, count: int | None = None, folder: Path | None = None) -> list[Task]:
    """The same of a file whose answers are integers from 0 to 999."""
    path, query = file_of(spec, split, folder)
    columns = read_columns("aime", query)
    tasks = tasks_of_rows(f"aime:{spec}", _rows(path), columns, split=split, seed=seed, verifier=contest_verifier)
    for task in tasks:
        if contest_integer(task.answer or "") is None:
            message = (
                f"{path}, line {task.metadata['line']}: the answer {task.answer!r} is not an integer from 0 to 999."
            )
            raise TaskError(message, "Correct it, or take jsonl: for answers of other kinds.")
    return tasks[:count]


def _rows(path: Path) -> list[TableRow]:
    lines = read_text(path, "a file of JSON lines").split("\n")
    rows = [
        TableRow(f"{path}, line {number}", f"{path.name}:{number}", _row(path, number, text), _origin(path, number))
        for number, text in enumerate(lines, 1)
        if text.strip()
    ]
    if not rows:
        raise TaskError(f"{path} has no rows.", "Each line must be one JSON object.")
    return rows


def _origin(path: Path, line: int) -> dict[str, Any]:
    return {"file": path.name, "line": line}


def read_text(path: Path, what: str, *, encoding: str = "utf-8", newline: str | None = None) -> str:
    """The text of a file. Raises `TaskError`; `what`: what the file has to be, in words."""
    try:
        with path.open(encoding=encoding, newline=newline) as file:
            return file.read()
    except OSError as error:
        raise TaskError(f"Cannot read {path}: {error.strerror}.", f"Give the path of {what}.") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{path} is not UTF-8 (byte {error.start}).", "Convert it to UTF-8.") from error


def _row(path: Path, line: int, text: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        fault = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise TaskError(f"{path}, line {line}: not JSON ({fault}).", "Each line must be one JSON object.") from error
    if not isinstance(row, dict):
        raise TaskError(f"{path}, line {line}: a JSON {type(row).__name__}.", "Each line must be one JSON object.")
    return row
