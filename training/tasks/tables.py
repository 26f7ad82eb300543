"""Tasks from files of rows and from data sets.

Tables are `csv:FILE?question=COLUMN&answer=COLUMN` and `parquet:FILE?...`. Files of JSON lines are
`jsonl:FILE?question=KEY&answer=KEY` and `aime:FILE?...`. Data sets of Hugging Face are
`hf:NAME_OR_FOLDER?config=NAME&split=NAME&question=COLUMN&answer=COLUMN`.

The query names the columns or keys that hold the problem and the reference answer, by default
`question` and `answer`. `id` names that of an identifier (by default the line number). `answer=`
means that there is no reference.

The answers of an `aime:` file are integers from 0 to 999, and only such an integer is right (`042`
is 42; `84/2` and `42.0`, which `jsonl:` accepts for 42, are not).

A file is one split. `{split}` in FILE is replaced, so that `jsonl:gsm8k/{split}.jsonl` names both.
The order is a permutation of the rows drawn from the seed, and `count` takes at most that many from
its beginning: no row is repeated.

A data set has splits of its own. Without `split=` training takes its `train`, and evaluation the
first existing one of its `eval`, `test` and `validation`. `split=` names one for both, or a part of
one (`train[:90%]`). The library `datasets` reads it, which runs no code of a data set from version
4 on.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from hrm_agent.errors import HrmError, TaskError, nearest, to_install
from hrm_agent.training.tasks.base import Task
from hrm_agent.training.tasks.rows import TableRow, tasks_of_rows
from hrm_agent.training.tasks.spec import Columns, file_of, one_line, read_columns
from hrm_agent.training.tasks.verify import contest_integer, contest_verifier

__all__ = ["load_aime", "load_csv", "load_hf", "load_jsonl", "load_parquet", "read_text"]


def load_jsonl(
    spec: str, *, split: str, seed: int, count: int | None = None, folder: Path | None = None
) -> list[Task]:
    """Load at most `count` tasks (None for all) from the JSON lines of `FILE?query`. Raises
    `TaskError` with file, line and fault.
    """
    path, query = file_of(spec, split, folder)
    columns = read_columns("jsonl", query)
    return tasks_of_rows(f"jsonl:{spec}", _rows(path), columns, split=split, seed=seed)[:count]


def load_aime(
    spec: str, *, split: str, seed: int, count: int | None = None, folder: Path | None = None
) -> list[Task]:
    """Load at most `count` tasks (None for all) from JSON lines whose answers are integers from 0
    to 999. Raises `TaskError` for another answer.
    """
    path, query = file_of(spec, split, folder)
    columns = read_columns("aime", query)
    tasks = tasks_of_rows(
        f"aime:{spec}", _rows(path), columns, split=split, seed=seed, verifier=contest_verifier
    )
    for task in tasks:
        if contest_integer(task.answer or "") is None:
            message = (
                f"{path}, line {task.metadata['line']}: the answer {task.answer!r} is not an"
                " integer from 0 to 999."
            )
            raise TaskError(message, "Correct it, or take jsonl: for answers of other kinds.")
    return tasks[:count]


def _rows(path: Path) -> list[TableRow]:
    lines = read_text(path, "a file of JSON lines").split("\n")
    rows = [
        TableRow(
            f"{path}, line {number}",
            f"{path.name}:{number}",
            _row(path, number, text),
            _origin(path, number),
        )
        for number, text in enumerate(lines, 1)
        if text.strip()
    ]
    if not rows:
        raise TaskError(f"{path} has no rows.", "Each line must be one JSON object.")
    return rows


def _origin(path: Path, line: int) -> dict[str, Any]:
    return {"file": path.name, "line": line}


def read_text(path: Path, what: str, *, encoding: str = "utf-8", newline: str | None = None) -> str:
    """Read the text of a file. Raises `TaskError`. `what` describes the expected file."""
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


def _row(path: Path, line: int, text: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        fault = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise TaskError(
            f"{path}, line {line}: not JSON ({fault}).", "Each line must be one JSON object."
        ) from error
    if not isinstance(row, dict):
        raise TaskError(
            f"{path}, line {line}: a JSON {type(row).__name__}.",
            "Each line must be one JSON object.",
        )
    return row


_OF_DATA_SET = ("config", "split")
_HELD_OUT = ("eval", "test", "validation")


def load_csv(
    spec: str, *, split: str, seed: int, count: int | None = None, folder: Path | None = None
) -> list[Task]:
    """Load at most `count` tasks (None for all) from the CSV file of `FILE?query`. The first line
    names the columns.
    """
    return _load_file("csv", _csv_rows, spec, split, seed, folder)[:count]


def load_parquet(
    spec: str, *, split: str, seed: int, count: int | None = None, folder: Path | None = None
) -> list[Task]:
    """Load at most `count` tasks (None for all) from the Parquet file of `FILE?query`."""
    return _load_file("parquet", _parquet_rows, spec, split, seed, folder)[:count]


def load_hf(
    spec: str, *, split: str, seed: int, count: int | None = None, folder: Path | None = None
) -> list[Task]:
    """Load at most `count` tasks (None for all) from a data set of Hugging Face, by its name there
    or as a local folder.
    """
    location, _, query = spec.partition("?")
    columns = read_columns("hf", query, _OF_DATA_SET)
    place = Path(folder or "", Path(unquote(location)).expanduser())
    rows = _data_set_rows(str(place) if place.is_dir() else location, split, columns)
    return tasks_of_rows(f"hf:{spec}", rows, columns, split=split, seed=seed)[:count]


def _load_file(
    family: str,
    read: Callable[[Path, Columns], Iterable[TableRow]],
    spec: str,
    split: str,
    seed: int,
    folder: Path | None,
) -> list[Task]:
    path, query = file_of(spec, split, folder)
    columns = read_columns(family, query)
    rows = list(read(path, columns))
    if not rows:
        raise TaskError(f"{path} has no rows.", "Name a file that has some.")
    return tasks_of_rows(f"{family}:{spec}", rows, columns, split=split, seed=seed)


def _used(columns: Columns, known: Sequence[str], what: str) -> list[str]:
    """Columns to read. Raises `TaskError`, naming the existing columns, if one is missing."""
    used = {role: columns[role] for role in ("question", "answer", "id") if columns[role]}
    for role, column in used.items():
        if column not in known:
            hint = (
                f"{nearest(column, known)} Name it with ?{role}=COLUMN; there are:"
                f" {', '.join(known) or 'none'}."
            )
            raise TaskError(f"{what} has no column {column!r}.", hint.strip())
    return list(dict.fromkeys(used.values()))


def _csv_rows(path: Path, columns: Columns) -> Iterator[TableRow]:
    text = read_text(path, "a CSV file", encoding="utf-8-sig", newline="")
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


def _parquet_rows(path: Path, columns: Columns) -> Iterator[TableRow]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise HrmError("Reading Parquet needs pyarrow.", f"Run `{to_install('tasks')}`.") from error
    try:
        used = _used(columns, parquet.read_schema(path).names, str(path))
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


def _data_set_rows(name: str, split: str, columns: Mapping[str, str]) -> Iterator[TableRow]:
    try:
        import datasets
    except ImportError as error:
        raise HrmError(
            "The library datasets is not installed.", f"Run `{to_install('datasets')}`."
        ) from error
    config, named = columns.get("config"), columns.get("split")
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
