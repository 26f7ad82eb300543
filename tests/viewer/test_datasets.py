"""The list of data sets: runs on a version are those that recorded its digest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hrm_agent.store import open_store
from hrm_agent.training.datasets import DatasetExample, ExampleSource, add_examples, make_example
from hrm_agent.training.tasks.sources import keep_sources
from hrm_agent.viewer.places import Place
from hrm_agent.viewer.projections.datasets import datasets
from tests.support.trajectory.samples import make_trajectory


def example(prompt: str) -> DatasetExample:
    source = ExampleSource(run="r", trajectory="t")
    return make_example(
        family="f", prompt=prompt, answer=None, metadata={}, task="1", source=source
    )


def recorded(folder: Path, tasks: str) -> Place:
    """Place of a run that is evaluated on `tasks` now."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f"command = 'eval'\ntasks = '{tasks}'\nsplit = 'eval'\n")
    keep_sources(tasks, "eval", folder)
    with open_store(folder / "store.db") as store:
        run = make_trajectory().model_copy(update={"run_id": folder.name})
        store.journal.write_trajectory(run)
    return Place(folder.name, str(folder), folder)


def test_runs_are_listed_at_the_version_whose_digest_they_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = add_examples(Path("datasets"), "d", [example("a")]).dataset.version.path
    add_examples(Path("other"), "d", [example("b")])
    places = [
        recorded(tmp_path / "runs/other", "dataset:d@1?folder=other&split=all"),
        recorded(tmp_path / "runs/before", "dataset:d@1"),
    ]
    first.unlink()
    add_examples(Path("datasets"), "d", [example("c")])
    places += [
        recorded(tmp_path / "runs/all", "mix:1*dataset:d@1?split=all,1*word_problems"),
        recorded(tmp_path / "runs/held", "dataset:d@1"),
    ]

    def listed(folder: str) -> list[dict[str, Any]]:
        found = datasets(places, Path(folder))
        assert not found["problems"]
        return found["datasets"][0]["runs"]

    try:
        assert {each["run"]: each["split"] for each in listed("datasets")} == {
            "all": "all",
            "held": "eval",
        }
        assert {each["run"]: each["split"] for each in listed("other")} == {"other": "all"}
    finally:
        for place in places:
            place.close()
