"""Tasks from the rows of files and of data sets.

Tables are `csv:FILE?question=COLUMN&answer=COLUMN` and `parquet:FILE?...`. Files of JSON lines are
`jsonl:FILE?question=KEY&answer=KEY` and `aime:FILE?...`. Data sets of Hugging Face are
`hf:NAME_OR_FOLDER?config=NAME&split=NAME&question=COLUMN&answer=COLUMN`.

The query names the columns (or keys) with the problem and the reference answer, by default
`question` and `answer`. `id` names the column with an identifier (by default the line number is the
identifier). `answer=` means that there is no reference answer.

The answers of an `aime:` file are integers from 0 to 999, and only such an integer is right (`042`
is 42; `84/2` and `42.0`, which `jsonl:` accepts for 42, are not). The file is of JSON lines, or
Parquet if its name ends so. Its columns may also be called `problem`, `Problem` and `Answer`, as in
published files.

A file is one split. `{split}` in FILE is replaced by the split, so that `jsonl:gsm8k/{split}.jsonl`
names the files of both splits. The order is a permutation of the rows drawn from the seed, of which
at most the first `count` rows are taken; no row is repeated.

A data set has named splits. Without `split=`, training takes `train`, and evaluation takes the
first of `eval`, `test` and `validation` that exists. `split=` names a split, or a part of one
(`train[:90%]`), for both. Data sets are read by the library `datasets`, which from version 4 on
runs no code of a data set.

GSM8K's answers, which are worked solutions that end with `#### 18`, are supported: the text after
the last `####` is the reference answer. A duplicate id is an error, since statistics pair problems
by id.
"""

from __future__ import annotations

import csv
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from hrm_agent.basics.unicode import find_surrogate
from hrm_agent.errors import HrmError, TaskError, nearest, to_install
from hrm_agent.training.tasks.base import Task
from hrm_agent.training.tasks.spec import Columns, file_of, one_line, read_columns
from hrm_agent.training.tasks.verify import contest_integer, contest_verifier, exact_verifier
from hrm_agent.trajectory import derive_seed

__all__ = [
    "TABLES",
    "TableRow",
    "csv_rows",
    "in_drawn_order",
    "json_rows",
    "load_table",
    "plain_text",
    "reference_answer",
]

_OF_DATA_SET = ("config", "split")
_HELD_OUT = ("eval", "test", "validation")
_CONTEST_COLUMNS = {"question": ("problem", "Problem"), "answer": ("Answer",)}
"""Other names of the columns of published AIME files, by role."""


class TableRow(NamedTuple):
    """Row of a table."""

    where: str
    """Location as text: `rows.jsonl, line 3`."""
    id: str
    """Identifier that is used if no column has one."""
    values: Mapping[str, Any]
    """Values by column."""
    metadata: dict[str, Any]
    """Metadata stored with the task, as JSON."""


def load_table(
    family: str,
    spec: str,
    *,
    split: str,
    seed: int,
    count: int | None = None,
    folder: Path | None = None,
) -> list[Task]:
    """Load at most `count` tasks (None: all) of `LOCATION?query`, in an order drawn from the seed.
    `family`: a member of `TABLES`.

    Raises `TaskError` that names the invalid row.
    """
    if family == "hf":
        location, _, query = spec.partition("?")
        columns = read_columns(family, query, _OF_DATA_SET)
        place = Path(folder or "", Path(unquote(location)).expanduser())
        rows = list(_data_set_rows(str(place) if place.is_dir() else location, split, columns))
    else:
        path, query = file_of(spec, split, folder)
        columns = read_columns(family, query)
        rows = list(_READERS[family](path, columns))
        if not rows:
            raise TaskError(f"{path} has no rows.", "Name a file that has some.")
        if family == "aime":
            columns = _contest_columns(columns, rows[0])
    verifier = contest_verifier if family == "aime" else exact_verifier
    tasks: list[Task] = []
    for row in rows:
        column = columns["answer"]
        answer = reference_answer(_value(row, "answer", column)) if column else None
        if answer == "":  # an empty answer of the policy would be right
            raise TaskError(
                f"{row.where}: the answer {column!r} is empty.", "Give one, or leave the row out."
            )
        if family == "aime" and contest_integer(answer or "") is None:
            raise TaskError(
                f"{row.where}: the answer {answer!r} is not an integer from 0 to 999.",
                "Correct it, or take jsonl: for answers of other kinds.",
            )
        task = Task(
            id=_value(row, "id", columns["id"]) if columns["id"] else row.id,
            family=f"{family}:{spec}",
            prompt=_value(row, "question", columns["question"]),
            verify=None if answer is None else verifier(answer),
            answer=answer,
            metadata=row.metadata,
        )
        tasks.append(task)
    return in_drawn_order(rows, tasks, split=split, seed=seed, count=count)


def in_drawn_order(
    rows: Sequence[TableRow], tasks: Sequence[Task], *, split: str, seed: int, count: int | None
) -> list[Task]:
    """First `count` tasks (None: all) in an order drawn from the seed. `rows`: rows from which the
    tasks were made.

    Raises `TaskError` for a duplicate id, with the locations of its rows.
    """
    for name, times in Counter(task.id for task in tasks).most_common(1):
        if times > 1:
            places = ", ".join(
                row.where for row, task in zip(rows, tasks, strict=True) if task.id == name
            )
            raise TaskError(
                f"The id {name!r} occurs more than once: {places}.",
                "Make it unique, or name no column of ids.",
            )
    drawn = list(tasks)
    # "jsonl" is part of the seed for all families, so that orders of earlier versions stay the same
    random.Random(derive_seed(seed, "jsonl", split)).shuffle(drawn)
    return drawn[:count]


def _contest_columns(columns: Columns, row: TableRow) -> dict[str, str]:
    """Columns of an AIME file. A default name that the row lacks is replaced by a published one."""
    found = dict(columns)
    for role, names in _CONTEST_COLUMNS.items():
        if found[role] == role and role not in row.values:
            found[role] = next((name for name in names if name in row.values), role)
    return found


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
    """Return a text as it is, or a number as text. Raises `TaskError` for other types. `what`: name
    of the value in the error.
    """
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


def _text_of(path: Path, what: str, *, encoding: str = "utf-8", newline: str | None = None) -> str:
    """Read the text of a file. Raises `TaskError` if it cannot be read. `what`: description of the
    expected file.
    """
    try:
        with path.open(encoding=encoding, newline=newline) as file:
            return file.read()
    except OSError as error:
        raise TaskError(
            f"Cannot read {path}: {error.strerror}.", f"Give the path of {what}."
        ) from error
    except UnicodeDecodeError as error:
        raise TaskError(
            f"{path} is not UTF-8 (byte {error.start}).", "Convert it to UTF-8."
        ) from error


def json_rows(path: Path) -> Iterator[TableRow]:
    """Yield the rows of a file of JSON lines. Raises `TaskError`."""
    hint = "Each line must be one JSON object."
    for number, text in enumerate(_text_of(path, "a file of JSON lines").split("\n"), 1):
        if not text.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            fault = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            raise TaskError(f"{where}: not JSON ({fault}).", hint) from error
        if not isinstance(row, dict):
            raise TaskError(f"{where}: a JSON {type(row).__name__}.", hint)
        yield TableRow(where, f"{path.name}:{number}", row, {"file": path.name, "line": number})


def _used(columns: Columns, known: Sequence[str], what: str) -> list[str]:
    """Names of the columns to read. If a column is missing, raises `TaskError`, which lists the
    existing columns.
    """
    used = {role: columns[role] for role in ("question", "answer", "id") if columns[role]}
    for role, column in used.items():
        if column not in known:
            hint = (
                f"{nearest(column, known)} Name it with ?{role}=COLUMN; there are:"
                f" {', '.join(known) or 'none'}."
            )
            raise TaskError(f"{what} has no column {column!r}.", hint.strip())
    return list(dict.fromkeys(used.values()))


def csv_rows(path: Path, columns: Columns) -> Iterator[TableRow]:
    """Yield the rows of a CSV file. Raises `TaskError`, also if one of `columns` is missing."""
    text = _text_of(path, "a CSV file", encoding="utf-8-sig", newline="")
    reader = csv.reader(StringIO(text, newline=""), strict=True)
    try:
        names = next(reader, [])
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise TaskError(f"{path} has two columns {twice!r}.", "Rename one of them.")
        _used(columns, names, str(path))
        for values in filter(None, reader):
            where = f"{path}, line {reader.line_num}"
            if len(values) != len(names):
                message = f"{where}: {len(values)} values for {len(names)} columns."
                raise TaskError(
                    message, "Put values with a comma or a line break in them into double quotes."
                )
            origin = {"file": path.name, "line": reader.line_num}
            row = dict(zip(names, values, strict=True))
            yield TableRow(where, f"{path.name}:{reader.line_num}", row, origin)
    except csv.Error as error:
        raise TaskError(
            f"{path}, line {reader.line_num}: not CSV ({error}).", "Correct the line."
        ) from error


def _parquet_rows(path: Path, columns: Columns | None) -> Iterator[TableRow]:
    """Yield the rows of a Parquet file with the given columns (None: with all)."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise HrmError("Reading Parquet needs pyarrow.", f"Run `{to_install('tasks')}`.") from error
    try:
        names: list[str] = parquet.read_schema(path).names
        used = names if columns is None else _used(columns, names, str(path))
        rows: list[dict[str, Any]] = parquet.read_table(path, columns=used).to_pylist()
    except OSError as error:
        raise TaskError(
            f"Cannot read {path}: {error}.", "Give the path of a Parquet file."
        ) from error
    except pa.ArrowException as error:
        raise TaskError(
            f"{path} is not Parquet: {error}.", "Give the path of a Parquet file."
        ) from error
    for number, row in enumerate(rows, 1):
        yield TableRow(
            f"{path}, row {number}",
            f"{path.name}:{number}",
            row,
            {"file": path.name, "row": number},
        )


def _contest_rows(path: Path, columns: Columns) -> Iterator[TableRow]:
    del columns  # their names are chosen by the first row
    return _parquet_rows(path, None) if path.suffix == ".parquet" else json_rows(path)


_READERS: Mapping[str, Callable[[Path, Columns], Iterator[TableRow]]] = {
    "aime": _contest_rows,
    "csv": csv_rows,
    "jsonl": lambda path, columns: json_rows(path),
    "parquet": _parquet_rows,
}
"""Family -> reader of its files."""
TABLES = (*_READERS, "hf")
"""Families of tables."""


def _data_set_rows(name: str, split: str, columns: Mapping[str, str]) -> Iterator[TableRow]:
    try:
        import datasets
    except ImportError as error:
        raise HrmError(
            "The library datasets is not installed.", f"Run `{to_install('datasets')}`."
        ) from error
    config = columns.get("config")
    named = columns.get("split")
    try:
        chosen = named or _own_split(name, datasets.get_dataset_split_names(name, config), split)
        table: Any = datasets.load_dataset(name, config, split=chosen)
    except HrmError:
        raise
    # errors of the library, of the file formats and of the network have no common base class
    except Exception as error:
        message = f"The data set {name!r} cannot be loaded: {one_line(error)[:400]}."
        raise TaskError(
            message, "Name a folder that holds one, or one of the hub that can be reached."
        ) from error
    what = f"The split {chosen!r} of {name!r}"
    used = _used(columns, table.column_names, what)
    for number, row in enumerate(table.select_columns(used)):
        origin = {"data_set": Path(name).name, "split": chosen, "row": number}
        yield TableRow(f"{what}, row {number}", f"{chosen}:{number}", row, origin)


def _own_split(name: str, known: Sequence[str], split: str) -> str:
    """Split of a data set for `train` or `eval`. Raises `TaskError` if there is none."""
    wanted = _HELD_OUT if split == "eval" else (split,)
    found = next((each for each in wanted if each in known), None)
    if found is None:
        hint = f"Name one with ?split=NAME: {', '.join(known) or 'it has none'}."
        raise TaskError(f"The data set {name!r} has no split {' or '.join(wanted)}.", hint)
    return found
