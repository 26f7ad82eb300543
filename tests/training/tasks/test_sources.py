"""Sources of a run's tasks: stored with the run, compared on resume, and drawn again to verify an
answer.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import RunError
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.store import open_store
from hrm_agent.training.config.commands import CollectConfig, GrpoConfig
from hrm_agent.training.config.parts import TrainingStage
from hrm_agent.training.rollout.collect import collect
from hrm_agent.training.tasks import verifier_of
from hrm_agent.training.tasks.sources import (
    changed_sources,
    keep_sources,
    read_sources,
    tasks_folder,
)
from hrm_agent.trajectory import Trajectory
from tests.support.graphs.scripts import boxed
from tests.support.lent import lend
from tests.support.training.packages import install

OWN = """
from hrm_agent.training.tasks import Task

def tasks(seed, split, count):
    return [Task(prompt=f"{split} {seed} {i}?", verify=lambda text, i=i: float(str(i) in text)) for i in range(count)]
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: LocalEnvironment) -> Path:
    """Folder in which runs are begun."""
    lend(environment, monkeypatch)
    (tmp_path / "home").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    (tmp_path / "home" / "mine.py").write_text(OWN)
    (tmp_path / "home" / "rows.csv").write_text("question,answer\n1 + 1?,2\n2 + 2?,4\n")
    return tmp_path / "home"


def run(folder: Path, tasks: str, count: int | None = 2) -> list[Trajectory]:
    config = CollectConfig(policy="scripted", tasks=tasks, count=count, context={"max_turns": 1})
    with ScriptedEngine(lambda _: boxed(1)) as engine:
        return asyncio.run(collect(config, folder, backend=engine))


def test_a_run_is_resumed_from_another_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = "mix:1*./mine.py:tasks,1*rows.csv"
    first = run(home / "run", spec, count=4)
    kept = read_sources(home / "run")
    assert kept is not None and kept.folder == str(home)
    assert kept.specs == ("./mine.py:tasks", "rows.csv") and set(kept.digests) == {
        "./mine.py",
        "rows.csv",
    }
    monkeypatch.chdir(home.parent / "elsewhere")
    assert tasks_folder(home / "run") == home
    again = run(home / "run", spec, count=4)
    assert [each.id for each in again] == [each.id for each in first]
    assert changed_sources(spec, "eval", home / "run") == []


def test_what_has_changed_is_named_and_other_tasks_are_refused(home: Path) -> None:
    run(home / "run", "rows.csv")
    (home / "rows.csv").write_text("question,answer\n1 + 1?,2\n2 + 2?,5\n")
    assert changed_sources("rows.csv", "eval", home / "run") == ["rows.csv"]
    assert len(run(home / "run", "rows.csv")) == 2, "the problems are the same ones"
    (home / "rows.csv").write_text("question,answer\n1 + 1?,2\n3 + 3?,6\n")
    with pytest.raises(
        RunError, match=r"is of task 'rows.csv:.'; .* The tasks have changed since the run began"
    ):
        run(home / "run", "rows.csv")


def test_what_a_stage_draws_from_is_kept_and_compared_as_well(home: Path) -> None:
    stages = (
        TrainingStage(steps=1),
        TrainingStage(steps=1, tasks="rows.csv"),
        TrainingStage(steps=1, tasks="rows.csv"),
    )
    config = GrpoConfig.of(tasks="./mine.py:tasks", stages=stages)
    assert config.tasks_of_stages == ("rows.csv",)
    (home / "run").mkdir()
    keep_sources(config.tasks, "train", home / "run", *config.tasks_of_stages)
    (home / "rows.csv").write_text("question,answer\n1 + 1?,2\n2 + 2?,5\n")
    assert changed_sources(config.tasks, "train", home / "run", *config.tasks_of_stages) == [
        "rows.csv"
    ]


def test_code_that_has_changed_is_named(home: Path) -> None:
    run(home / "run", "./mine.py:tasks")
    (home / "mine.py").write_text(OWN + "# more\n")
    assert changed_sources("./mine.py:tasks", "eval", home / "run") == ["./mine.py"]
    assert changed_sources("rows.csv", "eval", home / "run") == [], (
        "they are other tasks, and not changed ones"
    )
    (home / "mine.py").unlink()
    assert changed_sources("./mine.py:tasks", "eval", home / "run") == ["./mine.py"]
    (home / "run" / "tasks.json").write_text("{}")
    with pytest.raises(RunError, match=r"tasks\.json cannot be read"):
        changed_sources("./mine.py:tasks", "eval", home / "run")


def test_another_version_of_a_package_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = home.parent / "site"
    install(site, "versioned-tasks", "tasks = ['a', 'b']\n", version="1.2", registers="versioned")
    monkeypatch.syspath_prepend(site)
    run(home / "run", "versioned")
    assert changed_sources("versioned", "eval", home / "run") == []
    install(site, "versioned-tasks", "tasks = ['a', 'b']\n", version="2.0", registers="versioned")
    with pytest.raises(
        RunError, match=r"are of versioned-tasks 1\.2, but version 2\.0 is installed.*==1\.2"
    ):
        changed_sources("versioned", "eval", home / "run")


def test_a_task_on_record_is_verified_by_the_code_that_it_is_from(home: Path) -> None:
    _, second = run(home / "run", "./mine.py:tasks")
    verify = verifier_of(second.task, home / "run")
    assert verify is not None and (verify("1"), verify("0")) == (1.0, 0.0)
    assert verifier_of(second.task) is None, "a record alone may name anything"
    assert verifier_of(second.task, home) is None
    other = second.task.model_copy(update={"family": "./theirs.py:tasks"})
    assert verifier_of(other, home / "run") is None, "not what the run was begun with"
    for drawn in (
        None,
        {"place": "x"},
        {"place": 9},
        {"place": 1, "seed": 7, "split": "eval", "count": 2},
    ):
        changed = second.task.model_copy(update={"metadata": {"drawn": drawn}})
        assert verifier_of(changed, home / "run") is None
    with open_store(home / "run" / "store.db") as store:
        assert store.folder == home / "run"
