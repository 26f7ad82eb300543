"""Questions with one right answer: GSM8K, MATH-500 and GPQA.

| spec | file | right is |
|---|---|---|
| `gsm8k:FILE?min_steps=N&max_steps=N` | JSON lines: `question`, `answer` | the same number |
| `math500:FILE` | JSON lines: `problem`, `answer`, `unique_id` | equal by math-verify |
| `gpqa:FILE` | CSV: `Question`, `Correct Answer`, `Incorrect Answer 1` to `3`, `Record ID` | the letter |

Sources: Cobbe et al. 2021, arXiv 2110.14168 (GSM8K); Hendrycks et al. 2021, arXiv 2103.03874, of
which Lightman et al. 2023, arXiv 2305.20050, chose 500 problems (MATH-500); Rein et al. 2023, arXiv
2311.12022 (GPQA).

The steps of a GSM8K problem are its `<<...>>` annotations, one for each calculation of the worked
answer. The query may take problems of so many steps only.

The choices of a GPQA question stand in an order drawn from its record's id, so that every run asks
the same prompt, and runs can be compared.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

from hrm_agent.answers.exact import number
from hrm_agent.errors import TaskError
from hrm_agent.training.tasks.base import Task
from hrm_agent.training.tasks.published.rows import (
    options_of,
    published_rows,
    some,
    text,
)
from hrm_agent.training.tasks.spec import file_of
from hrm_agent.training.tasks.tables import TableRow, csv_rows, in_drawn_order, reference_answer
from hrm_agent.training.tasks.verify import letter_verifier, math_verifier, number_verifier
from hrm_agent.trajectory import derive_seed

__all__ = ["load_gpqa", "load_gsm8k", "load_math500"]

_STEP = re.compile(r"<<.*?>>")
_STEPS = ("min_steps", "max_steps")
_LETTERS = "ABCD"
_CHOICES = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
_ASKED = (
    "Answer this multiple choice question. Think step by step, and then end with a line of the form"
    " 'Answer: LETTER', where LETTER is one of ABCD."
)


def load_gsm8k(
    spec: str, *, split: str, seed: int, count: int | None = None, folder: Path | None = None
) -> list[Task]:
    """Load at most `count` problems (None: all) of GSM8K's file. Metadata has the number of `steps`
    of the worked answer. Raises `TaskError`.
    """
    least, most = _limits(options_of("gsm8k", spec, _STEPS))
    rows: list[TableRow] = []
    tasks: list[Task] = []
    for row in published_rows(spec, split, folder):
        worked = text(row, "answer")
        answer = reference_answer(worked)
        if "####" not in worked or number(answer) is None:
            raise TaskError(
                f"{row.where}: the answer does not end with `####` and a number.",
                "Correct it, or take jsonl: for answers of other kinds.",
            )
        steps = len(_STEP.findall(worked))
        if not least <= steps <= most:
            continue
        rows.append(row)
        tasks.append(
            Task(
                id=row.id,
                family=f"gsm8k:{spec}",
                prompt=text(row, "question"),
                verify=number_verifier(answer),
                answer=answer,
                metadata={**row.metadata, "steps": steps},
            )
        )
    if not tasks:
        raise TaskError(
            f"gsm8k:{spec} has no problem of so many steps.", "Change min_steps or max_steps."
        )
    return in_drawn_order(rows, tasks, split=split, seed=seed, count=count)


def _limits(given: dict[str, str]) -> tuple[int, float]:
    for name, value in given.items():
        if not re.fullmatch("[0-9]{1,9}", value):
            raise TaskError(
                f"gsm8k: {name} is {value!r}.", f"Give a number of steps, such as {name}=2."
            )
    return int(given.get("min_steps", 0)), float(given.get("max_steps", "inf"))


def load_math500(
    spec: str, *, split: str, seed: int, count: int | None = None, folder: Path | None = None
) -> list[Task]:
    """Load at most `count` problems (None: all) of MATH-500's file.

    Raises `TaskError`, and `ConfigError` if math-verify is not installed.
    """
    options_of("math500", spec)
    rows = published_rows(spec, split, folder)
    tasks = [
        Task(
            id=text(row, "unique_id"),
            family=f"math500:{spec}",
            prompt=text(row, "problem"),
            verify=math_verifier(answer := text(row, "answer")),
            answer=answer,
            metadata={
                **row.metadata,
                **{name: row.values[name] for name in ("subject", "level") if name in row.values},
            },
        )
        for row in rows
    ]
    return in_drawn_order(rows, tasks, split=split, seed=seed, count=count)


def load_gpqa(
    spec: str, *, split: str, seed: int, count: int | None = None, folder: Path | None = None
) -> list[Task]:
    """Load at most `count` questions (None: all) of a CSV file of GPQA. Raises `TaskError`."""
    options_of("gpqa", spec)
    path, _ = file_of(spec, split, folder)
    columns = {"question": "Question", "answer": "Correct Answer", "id": "Record ID"}
    rows = some(csv_rows(path, columns), path)
    tasks = [_with_choices(row, f"gpqa:{spec}") for row in rows]
    return in_drawn_order(rows, tasks, split=split, seed=seed, count=count)


def _with_choices(row: TableRow, family: str) -> Task:
    name = text(row, "Record ID")
    choices = [text(row, column).strip() for column in _CHOICES]
    places = random.Random(derive_seed(0, "gpqa", name)).sample(range(len(choices)), len(choices))
    shown = [f"{letter}) {choices[place]}" for letter, place in zip(_LETTERS, places, strict=True)]
    letter = _LETTERS[places.index(0)]
    return Task(
        id=name,
        family=family,
        prompt="\n\n".join([_ASKED, text(row, "Question").strip(), "\n".join(shown)]),
        verify=letter_verifier(letter),
        answer=letter,
        metadata=row.metadata,
    )
