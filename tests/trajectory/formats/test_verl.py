"""verl's Parquet: the tasks of runs, read by the libraries that verl reads them with."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from datasets import Dataset, Features, List, Value, load_dataset
from langchain_core.messages import SystemMessage

from hrm_agent.errors import StoreError
from hrm_agent.trajectory import TaskRef
from hrm_agent.trajectory.formats import RequestHints, export_to, import_from
from tests.support.trajectory.samples import make_trajectory
from tests.trajectory.formats.test_chat import ANSWER, ASKED, run, said

SYSTEM = SystemMessage("Compute.")
TASK = TaskRef(
    id="t",
    family="sums",
    prompt=ASKED.text,
    answer="42",
    metadata={"ability": "math", "split": "test"},
)
TEXT = Value("string")


def test_a_row_is_a_task(tmp_path: Path) -> None:
    asked = said("a", [SYSTEM, ASKED], ANSWER, asked=[SYSTEM, ASKED])
    runs = [run(asked, task=TASK), make_trajectory(), make_trajectory(id="again"), run(asked)]
    report = export_to(tmp_path / "x.parquet", runs, "verl", RequestHints())
    assert (report.trajectories, report.rows) == (4, 2)
    assert report.left_out == {
        "another run of a task that has a row": 1,
        "the task has no reference answer": 1,
    }
    first, second = pd.read_parquet(tmp_path / "x.parquet").to_dict("records")
    assert list(first["prompt"]) == [
        {"role": "system", "content": "Compute."},
        {"role": "user", "content": "What is 6 * 7?"},
    ]
    assert first["reward_model"] == {"style": "rule", "ground_truth": "42"}
    assert (first["data_source"], first["ability"]) == ("sums", "math")
    assert (first["extra_info"]["split"], first["extra_info"]["index"]) == ("test", 0)
    assert list(second["prompt"]) == [{"role": "user", "content": "What is 17 + 25?"}]
    assert (second["ability"], second["extra_info"]["index"], second["extra_info"]["split"]) == (
        "agent",
        1,
        "train",
    )
    assert json.loads(second["extra_info"]["metadata"]) == {"n": 2}


def test_the_types_are_those_that_datasets_reads(tmp_path: Path) -> None:
    export_to(tmp_path / "x.parquet", [make_trajectory()], "verl")
    expected = {
        "data_source": TEXT,
        "prompt": List({"role": TEXT, "content": TEXT}),
        "ability": TEXT,
        "reward_model": {"style": TEXT, "ground_truth": TEXT},
        "extra_info": {
            "split": TEXT,
            "index": Value("int64"),
            "task_id": TEXT,
            "question": TEXT,
            "answer": TEXT,
            "metadata": TEXT,
        },
    }
    files = str(tmp_path / "x.parquet")
    loaded = load_dataset(
        "parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache")
    )
    assert isinstance(loaded, Dataset)
    assert loaded.features == Features(expected)
    assert loaded[0]["reward_model"]["ground_truth"] == "42"


def test_without_a_task_there_is_no_file(tmp_path: Path) -> None:
    assert export_to(tmp_path / "x.parquet", [], "verl").rows == 0
    assert not (tmp_path / "x.parquet").exists()


def test_tasks_are_not_imported_as_runs(tmp_path: Path) -> None:
    export_to(tmp_path / "x.parquet", [make_trajectory()], "verl")
    with pytest.raises(StoreError, match="holds tasks"):
        import_from(tmp_path / "x.parquet", "verl")
    with pytest.raises(StoreError, match="is not an export of trajectories"):
        list(import_from(tmp_path / "x.parquet"))
