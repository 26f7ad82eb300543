"""Tasks from a file of JSON lines: `jsonl:FILE?question=question&answer=answer`, and `aime:FILE` in the same way.

The query names the keys of a row that hold the problem and the reference answer, `question` and `answer` unless said
otherwise; `id` names the key of an identifier (without it, the line number). GSM8K's answers, a worked solution that
ends with `#### 18`, are understood: what follows the last `####` is the reference. Statistics pair problems by their
ids, so an id that comes twice is an error.

The answers of an `aime:` file are integers from 0 to 999, and nothing but such an integer is right (`042` is 42; `84/2`
and `42.0`, which `jsonl:` takes for 42, are not).

A file is one split. Where `{split}` stands in FILE it is replaced, so that `jsonl:gsm8k/{split}.jsonl` names both. The
order is a permutation of the rows drawn from the seed, and `count` takes at most that many from its beginning: no row
comes twice.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from hrm_agent.errors import TaskError, nearest
from hrm_agent.training.tasks.base import Task, Verifier
from hrm_agent.training.tasks.verify import contest_integer, contest_verifier, exact_verifier
from hrm_agent.trajectory import derive_seed
from hrm_agent.unicode import find_surrogate

__all__ = ["load_aime", "load_jsonl"]

_KEYS = {"question": "question", "answer": "answer", "id": ""}


def load_jsonl(spec: str, *, split: str, seed: int, count: int | None = None) -> list[Task]:
    """At most `count` tasks of `FILE?query`, all of them for None. Raises `TaskError` naming file, line and fault."""
    return _load("jsonl", spec, split, seed, exact_verifier)[:count]


def load_aime(spec: str, *, split: str, seed: int, count: int | None = None) -> list[Task]:
    """Likewise, of a file whose answers are integers from 0 to 999."""
    tasks = _load("aime", spec, split, seed, contest_verifier)
    for task in tasks:
        if contest_integer(task.answer or "") is None:
            path, line = task.metadata["file"], task.metadata["line"]
            message = f"{path}, line {line}: the answer {task.answer!r} is not an integer from 0 to 999."
            raise TaskError(message, "Correct it, or take jsonl: for answers of other kinds.")
    return tasks[:count]


def _load(family: str, spec: str, split: str, seed: int, verifier: Callable[[str], Verifier]) -> list[Task]:
    location, _, query = spec.partition("?")
    path = Path(unquote(location).replace("{split}", split)).expanduser()
    keys = _keys(query)
    tasks = [_task(f"{family}:{spec}", path, line, row, keys, verifier) for line, row in _rows(path)]
    _no_id_twice(path, tasks)
    random.Random(derive_seed(seed, "jsonl", split)).shuffle(tasks)
    return tasks


def _no_id_twice(path: Path, tasks: Sequence[Task]) -> None:
    (name, times), *_ = Counter(task.id for task in tasks).most_common(1)
    if times > 1:
        lines = ", ".join(str(task.metadata["line"]) for task in tasks if task.id == name)
        raise TaskError(f"{path}, lines {lines}: the id {name!r} stands on each.", "Make it unique, or leave ?id= out.")


def _keys(query: str) -> Mapping[str, str]:
    given = dict(parse_qsl(query, keep_blank_values=True))
    for name in given:
        if name not in _KEYS:
            known = ", ".join(_KEYS)
            raise TaskError(f"jsonl: has no parameter {name!r}.", f"{nearest(name, _KEYS)} Known: {known}.".strip())
    return {**_KEYS, **given}


def _rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise TaskError(f"Cannot read {path}: {error.strerror}.", "Give the path of a file of JSON lines.") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{path} is not UTF-8 (byte {error.start}).", "Convert it to UTF-8.") from error
    rows = [(number, _row(path, number, text)) for number, text in enumerate(lines, 1) if text.strip()]
    if not rows:
        raise TaskError(f"{path} has no rows.", "Each line must be one JSON object.")
    return rows


def _row(path: Path, line: int, text: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        fault = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise TaskError(f"{path}, line {line}: not JSON ({fault}).", "Each line must be one JSON object.") from error
    if not isinstance(row, dict):
        raise TaskError(f"{path}, line {line}: a JSON {type(row).__name__}.", "Each line must be one JSON object.")
    return row


def _task(
    family: str,
    path: Path,
    line: int,
    row: dict[str, Any],
    keys: Mapping[str, str],
    verifier: Callable[[str], Verifier],
) -> Task:
    answer = _reference(_value(path, line, row, "answer", keys["answer"]))
    if not answer:  # an empty box would be right
        raise TaskError(
            f"{path}, line {line}: the answer {keys['answer']!r} is empty.", "Give it, or leave the row out."
        )
    return Task(
        id=_value(path, line, row, "id", keys["id"]) if keys["id"] else f"{path.name}:{line}",
        family=family,
        prompt=_value(path, line, row, "question", keys["question"]),
        verify=verifier(answer),
        answer=answer,
        metadata={"file": path.name, "line": line},
    )


def _value(path: Path, line: int, row: dict[str, Any], role: str, key: str) -> str:
    if key not in row:
        hint = f"{nearest(key, row)} Name the key with ?{role}=KEY; the row has {', '.join(row) or 'none'}.".strip()
        raise TaskError(f"{path}, line {line}: no key {key!r}.", hint)
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        kind = type(value).__name__
        raise TaskError(f"{path}, line {line}: {key!r} is a {kind}.", "It must be a text or a number.")
    text = str(value)
    if find_surrogate(text) is not None:
        raise TaskError(
            f"{path}, line {line}: {key!r} holds half a character.", "Both halves of a \\uD83D\\uDE00 are needed."
        )
    return text


def _reference(answer: str) -> str:
    """What follows the last `####`; the whole text where there is none."""
    return answer.rpartition("####")[2].strip()
