"""Problems of GSM8K and of reasoning-gym's `gsm_symbolic`, with the values of the reference's steps.

    hrm-agent eval --tasks "benchmarks.smollm2.problems:gsm8k?folder=gsm8k"

A task's metadata has `steps`: the intermediate results of the reference solution, and its answer.
`benchmarks.smollm2.rewards` pays for them.
"""

from __future__ import annotations

import json
import random
import re
from itertools import islice
from pathlib import Path
from typing import Any

from hrm_agent.training.tasks import Task
from hrm_agent.training.tasks.verify import exact_verifier

__all__ = ["gsm8k", "number_of", "symbolic"]

_ANNOTATED = re.compile(r"<<[^>]*=([^>]*)>>")
"""Computation of a GSM8K solution: `<<48/2=24>>`."""
_EQUAL = re.compile(r"=\s*[^\d\s-]?(-?[\d,]+(?:\.\d+)?)")
"""Result in a `gsm_symbolic` solution: `35 x €2 = €70`."""
_DRAWN = 20
"""Problems of `gsm_symbolic` from which one with few steps is taken."""


def gsm8k(
    split: str,
    seed: int,
    count: int | None = None,
    folder: str = "gsm8k",
    most_steps: int = 99,
) -> list[Task]:
    """Rows of `FOLDER/train.jsonl` or `FOLDER/test.jsonl` in an order drawn from the seed. Training
    takes rows with 1 to `most_steps` computations, evaluation takes all rows.
    """
    path = Path(folder, "train.jsonl" if split == "train" else "test.jsonl")
    rows = list(enumerate(map(json.loads, path.read_text(encoding="utf-8").splitlines())))
    if split == "train":
        rows = [row for row in rows if 1 <= row[1]["answer"].count("<<") <= most_steps]
    random.Random(seed).shuffle(rows)
    return [_gsm8k_task(f"{split}-{index}", row) for index, row in rows[:count]]


def _gsm8k_task(name: str, row: dict[str, str]) -> Task:
    solution, _, answer = row["answer"].rpartition("####")
    return _task(
        name, row["question"], answer.strip().replace(",", ""), _ANNOTATED.findall(solution)
    )


def symbolic(split: str, seed: int, count: int = 256, most_steps: int = 99) -> list[Task]:
    """Problems of reasoning-gym's `gsm_symbolic`. Its hundred templates are the same in both splits;
    names and numbers differ. Training takes problems with at most `most_steps` results in the
    reference solution, evaluation takes all.
    """
    import reasoning_gym

    most = most_steps if split == "train" else 99
    drawn: Any = reasoning_gym.create_dataset(
        "gsm_symbolic", seed=2 * seed + (split == "eval"), size=_DRAWN * count
    )
    results = (
        (index, entry, _EQUAL.findall(entry["metadata"]["answer_cot"]))
        for index, entry in enumerate(drawn)
    )
    fitting = ((i, entry, found) for i, entry, found in results if len(found) <= most)
    return [
        _task(f"{split}-{seed}-{i}", entry["question"], entry["answer"], found)
        for i, entry, found in islice(fitting, count)
    ]


def _task(name: str, prompt: str, answer: str, results: list[str]) -> Task:
    steps = [number_of(text) for text in (*results, answer)]
    return Task(
        prompt=prompt,
        id=name,
        answer=answer,
        verify=exact_verifier(answer),
        metadata={"steps": [value for value in steps if value is not None]},
    )


def number_of(text: str) -> float | None:
    """Number that a text is (None if it is none). Thousands may be separated by commas."""
    try:
        return float(text.replace(",", "").strip())
    except ValueError:
        return None
