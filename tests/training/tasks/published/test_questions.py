"""GSM8K, MATH-500, AIME and GPQA in their published form, on rows made up for the tests."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from hrm_agent.errors import ConfigError, TaskError
from hrm_agent.training.tasks import Task, load_tasks, verifier_of
from tests.support.graphs.scripts import boxed

CHOICES = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


def load(spec: str, **options: Any) -> list[Task]:
    return load_tasks(spec, split="eval", seed=0, **options)


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def scores(task: Task, *texts: str) -> list[float]:
    """Rewards of texts, by the loaded task and by its record alike."""
    again = verifier_of(task.ref())
    assert task.verify is not None and again is not None
    found = [float(task.verify(text)) for text in texts]  # pyright: ignore[reportArgumentType]
    assert found == [again(text) for text in texts]
    return found


@pytest.fixture
def word_problems(tmp_path: Path) -> Path:
    return lines(
        tmp_path / "eval.jsonl",
        {"question": "Two bags of 600 nuts?", "answer": "2*600=<<2*600=1200>>1200\n#### 1,200"},
        {"question": "Half of 8, less 1?", "answer": "<<8/2=4>>4, <<4-1=3>>3\n#### 3"},
        {"question": "None?", "answer": "None are left.\n#### 0"},
    )


def test_gsm8k_is_an_exact_match_of_numbers(word_problems: Path) -> None:
    tasks = {t.answer: t for t in load("gsm8k:{split}.jsonl", folder=word_problems.parent)}
    assert {answer: task.metadata["steps"] for answer, task in tasks.items()} == {
        "1,200": 1,
        "3": 2,
        "0": 0,
    }
    right = ("1200", "1,200", "\\$1200.00")
    assert scores(tasks["1,200"], *map(boxed, right)) == [1, 1, 1]
    unboxed = ("Answer: 1200", "so \\boxed{1200}", "2 * 600\n#### 1,200", "Answer: \\boxed{1200}")
    assert scores(tasks["1,200"], *unboxed) == [1, 1, 1, 1]
    wrong = ("1200.5", "1 200", "12,00", "")
    assert (
        scores(tasks["1,200"], *map(boxed, wrong), "1200", "<think>\\boxed{1200}</think>")
        == [0] * 6
    )


@pytest.mark.parametrize(
    ("query", "answers"),
    [
        ("?max_steps=1", {"1,200", "0"}),
        ("?min_steps=1", {"1,200", "3"}),
        ("?min_steps=2&max_steps=2", {"3"}),
    ],
)
def test_problems_of_so_many_steps_are_taken(
    query: str, answers: set[str], word_problems: Path
) -> None:
    assert {task.answer for task in load(f"gsm8k:{word_problems}{query}")} == answers


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("gsm8k:rows.jsonl", "line 1: the answer does not end with `####` and a number"),
        ("gsm8k:eval.jsonl?min_steps=9", "has no problem of so many steps"),
        ("gsm8k:eval.jsonl?max_steps=few", "max_steps is 'few'"),
        ("gsm8k:eval.jsonl?max_step=2", "Did you mean 'max_steps'"),
        ("gsm8k:none.jsonl", "Cannot read"),
        ("math500:rows.jsonl", "line 1: no 'unique_id'. A published row has a text there"),
        ("math500:eval.jsonl?count=2", "has no parameter 'count'. Known: none."),
        ("gpqa:rows.csv", "has no column 'Question'"),
    ],
)
def test_other_files_are_refused(spec: str, said: str, word_problems: Path, tmp_path: Path) -> None:
    lines(tmp_path / "rows.jsonl", {"question": "6 * 7?", "answer": "42"})
    (tmp_path / "rows.csv").write_text("question,answer\n6 * 7?,42\n")
    with pytest.raises(TaskError) as caught:
        load(spec, folder=tmp_path)
    assert said in str(caught.value)


@pytest.mark.shared_data
def test_the_published_gsm8k_is_read(shared_data: Path) -> None:
    tasks = load(f"gsm8k:{shared_data}/gsm8k/test.jsonl")
    assert len(tasks) == 1319
    for task in tasks:
        assert task.verify is not None and task.verify(boxed(task.answer)) == 1
    assert 0 < len(load(f"gsm8k:{shared_data}/gsm8k/test.jsonl?max_steps=2")) < 1319


def test_math_answers_are_equal_by_algebra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"problem": "Half of 1 + x?", "solution": "...", "answer": "\\frac{1+x}{2}"}
    lines(
        tmp_path / "test.jsonl",
        {**row, "subject": "Algebra", "level": 1, "unique_id": "test/1.json"},
    )
    (task,) = load("math500:test.jsonl", folder=tmp_path)
    assert (task.id, task.metadata["subject"], task.metadata["level"]) == (
        "test/1.json",
        "Algebra",
        1,
    )
    assert scores(task, boxed("\\frac{x}{2} + 0.5"), "It is $\\boxed{\\dfrac{x+1}2}$.") == [1, 1]
    assert scores(task, boxed("1 + x"), "$\\frac{1+x}{2}$", boxed("9**9**9**9")) == [0, 0, 0]
    monkeypatch.setattr("hrm_agent.rewards.comparison.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"math-verify is not installed.*\[math\]"):
        load("math500:test.jsonl", folder=tmp_path)


def test_columns_of_published_aime_files_are_known(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", {"id": 60, "problem": "p", "solution": "s", "answer": "025"})
    lines(tmp_path / "b.jsonl", {"ID": "2024-I-1", "Problem": "p", "Answer": 25})
    lines(tmp_path / "c.jsonl", {"question": "p", "answer": "25^\\circ"})
    columns = {"problem_idx": [1], "problem": ["p"], "answer": [25], "kinds": [["Geometry"]]}
    parquet.write_table(pa.table(columns), tmp_path / "d.parquet")
    for name in ("a.jsonl", "b.jsonl", "c.jsonl", "d.parquet"):
        (task,) = load(f"aime:{name}", folder=tmp_path)
        assert task.prompt == "p" and scores(task, boxed("25"), boxed("26")) == [1, 0]


def test_choices_of_gpqa_have_a_fixed_order(tmp_path: Path) -> None:
    with (tmp_path / "gpqa_diamond.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*CHOICES, "Record ID", "Question", "Subdomain"])
        for i in range(12):
            writer.writerow([f"right {i}", "a, b", "c\n", "d", f"rec{i}", f"Which,\n{i}?", "x"])
    tasks = load("gpqa:gpqa_diamond.csv", folder=tmp_path)
    other = load_tasks("gpqa:gpqa_diamond.csv", split="train", seed=7, folder=tmp_path)
    assert {t.id: t.prompt for t in tasks} == {t.id: t.prompt for t in other}
    assert len({task.answer for task in tasks}) > 2, "the right choice is not always at one place"
    for task in tasks:
        assert task.answer is not None
        assert f"{task.answer}) right {task.id.removeprefix('rec')}" in task.prompt.splitlines()
        right = (
            "Answer: {}",
            "**Answer: {}**",
            "so\nAnswer: ({})",
            "\\boxed{{{}}}",
            "answer: ${}$",
        )
        assert scores(task, *(form.format(task.answer) for form in right)) == [1] * 5
        letter = "ABCD"[("ABCD".index(task.answer) + 1) % 4]
        wrong = (
            f"Answer: {letter}",
            f"Answer: {task.answer}\nAnswer: {letter}",
            "",
            "Answer: ABCD",
        )
        assert scores(task, *wrong) == [0] * 4
