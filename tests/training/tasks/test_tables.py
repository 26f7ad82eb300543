"""Tasks from CSV, Parquet, and data sets of Hugging Face in a folder."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from hrm_agent.errors import HrmError, TaskError
from hrm_agent.training.tasks import Task, load_tasks, verifier_of
from tests.support.graphs.scripts import boxed

COLUMNS = {"question": ["6 * 7?", "1 + 1?"], "answer": [42, 2], "n": ["a", "b"]}
CSV = '\ufeffq,a,n\n"6, times\n7?",42,a\n1 + 1?,work #### 2,b\n'


def load(spec: str, split: str = "eval", **options: Any) -> list[Task]:
    return load_tasks(spec, split=split, seed=0, **options)


def test_csv_rows_become_tasks(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(CSV)
    tasks = load("rows.csv?question=q&answer=a&id=n", folder=tmp_path)
    assert {(t.id, t.prompt, t.answer) for t in tasks} == {
        ("a", "6, times\n7?", "42"),
        ("b", "1 + 1?", "2"),
    }
    assert [t.ref() for t in tasks] == [
        t.ref() for t in load("csv:rows.csv?question=q&answer=a&id=n", folder=tmp_path)
    ]
    assert all(task.verify is not None and task.verify(boxed(task.answer)) == 1 for task in tasks)
    verify = verifier_of(tasks[0].ref())
    assert verify is not None and (verify(boxed(tasks[0].answer)), verify(boxed(0))) == (1, 0)
    unscored = load(f"csv:{tmp_path}/rows.csv?question=q&answer=")[0]
    assert unscored.id.startswith("rows.csv:") and unscored.verify is None, (
        "no reference, no verifier"
    )


def test_parquet_rows_become_tasks(tmp_path: Path) -> None:
    parquet.write_table(pa.table(COLUMNS), tmp_path / "eval.parquet")
    tasks = load(f"{tmp_path}/{{split}}.parquet?id=n")
    assert {(t.id, t.prompt, t.answer) for t in tasks} == {
        ("a", "6 * 7?", "42"),
        ("b", "1 + 1?", "2"),
    }
    assert len(load(f"parquet:{tmp_path}/eval.parquet", count=1)) == 1
    assert verifier_of(tasks[0].ref()) is not None


@pytest.mark.parametrize(
    ("content", "query", "said"),
    [
        (
            "q,a\n1,2\n",
            "",
            "has no column 'question'. Name it with ?question=COLUMN; there are: q, a.",
        ),
        ("question,answers\n1,2\n", "", "has no column 'answer'. Did you mean 'answers'"),
        ("question,answer\n1,2,3\n", "", "line 2: 3 values for 2 columns"),
        ("question,answer\n1\n", "", "line 2: 1 values for 2 columns"),
        ("question,question\n1,2\n", "", "two columns 'question'"),
        ('question,answer\n1,"2', "", "not CSV"),
        ("question,answer\n1,\n", "", "the answer 'answer' is empty"),
        ("question,answer\n", "", "has no rows"),
        ("", "", "has no column 'question'"),
        ("question,answer\n1,2\n3,2\n", "?id=answer", "The id '2' occurs more than once"),
        ("question,answer\n1,2\n", "?colour=red", "has no parameter 'colour'"),
    ],
)
def test_csv_that_does_not_fit_is_told(content: str, query: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(content)
    with pytest.raises(TaskError) as caught:
        load(f"{tmp_path}/rows.csv{query}")
    assert said in str(caught.value)


def test_parquet_that_does_not_fit_is_told(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("no table")
    parquet.write_table(pa.table({**COLUMNS, "answer": [[1], [2]]}), tmp_path / "lists.parquet")
    parquet.write_table(pa.table({**COLUMNS, "answer": [1.5, None]}), tmp_path / "gap.parquet")
    for name, said in {
        "none.parquet": "Cannot read .*none.parquet",
        "text.parquet": "text.parquet is not Parquet",
        "lists.parquet": "row 1: 'answer' is a list",
        "gap.parquet": "row 2: 'answer' is a NoneType",
        "gap.parquet?answer=reply": "no column 'reply'.* there are: question, answer, n",
    }.items():
        with pytest.raises(TaskError, match=said):
            load(f"{tmp_path}/{name}")


@pytest.fixture
def data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as on Hugging Face, with two configurations."""
    folder = tmp_path / "sums"
    folder.mkdir()
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    parquet.write_table(pa.table(COLUMNS), folder / "train.parquet")
    parquet.write_table(
        pa.table({key: column[:1] for key, column in COLUMNS.items()}), folder / "test.parquet"
    )
    parquet.write_table(
        pa.table({"problem": ["3 * 3?"], "solution": ["#### 9"]}), folder / "odd.parquet"
    )
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: plain\n  data_files:\n  - split: train\n    path:"
        " train.parquet\n  - split: test\n    path: test.parquet\n- config_name: odd\n "
        " data_files:\n  - split: solved\n    path: odd.parquet\n---\n"
    )
    return folder


def test_a_data_set_is_read_by_its_splits(data_set: Path) -> None:
    assert len(load(f"hf:{data_set}?config=plain", "train")) == 2
    (held_out,) = load("hf:sums?config=plain&id=n", folder=data_set.parent)
    assert (held_out.id, held_out.prompt, held_out.answer) == ("a", "6 * 7?", "42")
    assert held_out.metadata == {"data_set": "sums", "split": "test", "row": 0}
    (odd,) = load(f"hf:{data_set}?config=odd&split=solved&question=problem&answer=solution")
    assert (odd.answer, odd.id) == ("9", "solved:0") and verifier_of(odd.ref()) is not None
    assert len(load(f"hf:{data_set}?config=plain&split=train[:1]")) == 1


def test_a_folder_of_json_lines_is_a_data_set(data_set: Path) -> None:
    folder = data_set.parent / "lines"
    folder.mkdir()
    (folder / "validation.jsonl").write_text(json.dumps({"question": "3 * 3?", "answer": 9}) + "\n")
    assert [task.answer for task in load(f"hf:{folder}")] == ["9"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "cannot be loaded: .*plain"),
        (
            "?config=odd",
            "has no split eval or test or validation. Name one with .split=NAME: solved",
        ),
        ("?config=plain&split=dev", "cannot be loaded: .*dev"),
        ("?config=plain&question=problem", "no column 'problem'.* there are: question, answer, n"),
        ("?config=plain&streaming=1", "has no parameter 'streaming'"),
    ],
)
def test_a_data_set_that_does_not_fit_is_told(query: str, said: str, data_set: Path) -> None:
    with pytest.raises(TaskError, match=said) as caught:
        load(f"hf:{data_set}{query}")
    assert "\n" not in str(caught.value)


def test_a_missing_library_is_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name.partition(".")[0] in ("datasets", "pyarrow"):
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    for spec, extra in (("hf:sums", "datasets"), ("parquet:x.parquet", "tasks")):
        with pytest.raises(HrmError, match=rf"pip install .*\[{extra}\]'"):
            load(spec)
