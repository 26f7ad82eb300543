"""IFEval in its published form, on rows made up for the tests, with the library's checks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nltk
import pytest

from hrm_agent.errors import HrmError, TaskError
from hrm_agent.training.tasks import Task, load_tasks, verifier_of

pytestmark = pytest.mark.whole  # the library's import takes seconds

ROWS = [
    {
        "key": 7,
        "prompt": "Name two fruits in lower case, without commas.",
        "instruction_id_list": ["punctuation:no_comma", "change_case:english_lowercase"],
        "kwargs": [{}, {}],
    },
    {
        "key": 8,
        "prompt": "Write three signs #, and end with Bye.",
        "instruction_id_list": ["keywords:letter_frequency", "startend:end_checker"],
        "kwargs": [
            {"letter": "#", "let_frequency": 3, "let_relation": "at least", "num_words": None},
            {"end_phrase": "Bye."},
        ],
    },
]


def load(folder: Path, *rows: Mapping[str, Any]) -> dict[str, Task]:
    (folder / "input_data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = load_tasks("ifeval:input_data.jsonl", split="eval", seed=0, folder=folder)
    return {task.id: task for task in tasks}


def numbers(task: Task, text: str) -> list[float]:
    again = verifier_of(task.ref())
    assert task.verify is not None and again is not None
    found = task.verify(text)
    assert isinstance(found, Mapping) and found == again(text)
    names = ("correct", "prompt_loose", "followed per instruction", "instruction")
    return [*(found[name] for name in names), found["loosely followed per instruction"]]


def test_instructions_are_followed_strictly_or_loosely(tmp_path: Path) -> None:
    tasks = load(tmp_path, *ROWS)
    fruits = "the fruits that come to mind first are an apple and a pear"
    assert numbers(tasks["7"], fruits) == [1, 1, 2, 2, 2]
    assert numbers(tasks["7"], f"<think>A, B</think>\n{fruits}") == [1, 1, 2, 2, 2]
    assert numbers(tasks["7"], f"Sure, here they are:\n{fruits}") == [0, 1, 0, 2, 2]
    assert numbers(tasks["7"], fruits.replace(" and", ",")) == [0, 0, 1, 2, 1]
    assert numbers(tasks["7"], "") == [0, 0, 0, 2, 0]
    assert numbers(tasks["8"], "### Signs. Bye.") == [1, 1, 2, 2, 2]
    assert numbers(tasks["8"], "## Signs. **Bye.**") == [0, 0, 0, 2, 1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"instruction_id_list": ["colour:red"]}, "the instruction 'colour:red' is unknown"),
        ({"instruction_id_list": ["keywords:existence"]}, "'keywords:existence' has no keywords"),
        (
            {
                "instruction_id_list": ["keywords:frequency"],
                "kwargs": [{"keyword": "a", "frequency": 1, "relation": "about"}],
            },
            "'keywords:frequency' cannot be checked: The supported relation",
        ),
        ({"kwargs": []}, "`kwargs` is not a list of one JSON object for each instruction"),
        ({"instruction_id_list": [], "kwargs": []}, "there is no instruction"),
        ({"instruction_id_list": "punctuation:no_comma"}, "a str as 'instruction_id_list'"),
    ],
)
def test_what_cannot_be_checked_is_refused(
    change: Mapping[str, Any], said: str, tmp_path: Path
) -> None:
    row = {**ROWS[0], "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}], "key": 9}
    with pytest.raises(TaskError) as caught:
        load(tmp_path, ROWS[0], {**row, **change})
    assert "input_data.jsonl, line 2: " in str(caught.value) and said in str(caught.value)


def test_missing_parts_are_named_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    sentences = {
        **ROWS[0],
        "instruction_id_list": ["length_constraints:number_sentences"],
        "kwargs": [{"num_sentences": 2, "relation": "at least"}],
    }
    with pytest.raises(TaskError, match=r"python -m nltk.downloader punkt_tab"):
        load(tmp_path, sentences)
    monkeypatch.setattr("hrm_agent.training.tasks.published.ifeval.find_spec", lambda name: None)
    with pytest.raises(HrmError, match=r"if-verifiable is not installed.*\[ifeval\]"):
        load(tmp_path, ROWS[0])
