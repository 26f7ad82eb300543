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
"""Result in a `gsm_symbolic` solution: `35 x €2 = €70`. Two templates go on after the number, with
a fraction or a product, so that their steps are wrong.
"""
_DRAWN = 20
"""Problems of `gsm_symbolic` from which one with few steps is taken."""
_HELD_OUT = 10_000_000
"""Seed of the first held-out problem of `gsm_symbolic`, far beyond those of training."""
# fmt: off
_TEMPLATE_ROWS = {
    11, 20, 43, 74, 99, 103, 107, 116, 125, 145, 149, 158, 164, 184, 220, 232, 242, 265, 266, 269,
    300, 336, 357, 364, 365, 400, 401, 406, 432, 434, 440, 456, 458, 469, 480, 491, 496, 520, 546,
    554, 579, 636, 655, 661, 677, 684, 728, 740, 788, 799, 800, 843, 858, 873, 918, 921, 930, 937,
    955, 976, 982, 984, 989, 991, 1020, 1021, 1023, 1025, 1031, 1053, 1063, 1074, 1084, 1099,
    1111, 1133, 1141, 1164, 1165, 1189, 1247, 1264, 1268, 1277, 1305,
}
# fmt: on
"""Test rows of GSM8K from which the templates of `gsm_symbolic` were made (arXiv:2410.05229), found
by the words that all problems of a template have.
"""


def gsm8k(
    split: str,
    seed: int,
    count: int | None = None,
    folder: str = "gsm8k",
    most_steps: int = 99,
    templates: bool = False,
) -> list[Task]:
    """Rows of `FOLDER/train.jsonl` or `FOLDER/test.jsonl` in an order drawn from the seed. Training
    takes rows with 1 to `most_steps` computations. Evaluation takes the 1,234 rows that no template
    of `gsm_symbolic` was made from or, if `templates`, the 85 others.
    """
    path = Path(folder, "train.jsonl" if split == "train" else "test.jsonl")
    rows = list(enumerate(map(json.loads, path.read_text(encoding="utf-8").splitlines())))
    if split == "train":
        rows = [row for row in rows if 1 <= row[1]["answer"].count("<<") <= most_steps]
    else:
        rows = [row for row in rows if (row[0] in _TEMPLATE_ROWS) == templates]
    random.Random(seed).shuffle(rows)
    return [_gsm8k_task(f"{split}-{index}", row) for index, row in rows[:count]]


def _gsm8k_task(name: str, row: dict[str, str]) -> Task:
    solution, _, answer = row["answer"].rpartition("####")
    return _task(
        name, row["question"], answer.strip().replace(",", ""), _ANNOTATED.findall(solution)
    )


def symbolic(split: str, seed: int, count: int = 256, most_steps: int = 99) -> list[Task]:
    """Problems of reasoning-gym's `gsm_symbolic`. Its 85 templates are the same in both splits;
    names and numbers differ. Training takes problems with at most `most_steps` results in the
    reference solution (26 templates have some with at most two), evaluation takes all.
    """
    import reasoning_gym

    most = most_steps if split == "train" else 99
    first = 2 * seed if split == "train" else _HELD_OUT + seed
    drawn: Any = reasoning_gym.create_dataset("gsm_symbolic", seed=first, size=_DRAWN * count)
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
