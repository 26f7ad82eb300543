"""Tasks that installed packages register by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from hrm_agent.errors import TaskError
from hrm_agent.training.tasks import Task, load_tasks
from hrm_agent.training.tasks.packages import registered_names
from hrm_agent.training.tasks.registry import FAMILIES
from hrm_agent.training.tasks.spec import FAMILY_NAMES
from tests.support.training.packages import install

CODE = (
    "def tasks(split, size=2):\n    return [{'prompt': f'{split} {i}?', 'answer': i} for i in"
    " range(size)]\n"
)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "site").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "site")
    return tmp_path / "site"


def load(spec: str, **options: int) -> list[Task]:
    return load_tasks(spec, split="eval", seed=0, **options)


def test_a_registered_name_leads_to_its_tasks(site: Path) -> None:
    install(site, "sums-of-mine", CODE, registers="my-sums")
    assert registered_names() == ["my-sums"]
    assert [task.prompt for task in load("my-sums")] == ["eval 0?", "eval 1?"]
    assert (
        len(load("my-sums?size=5")) == 5
        and len(load("mix:1*my-sums?size=9,1*word_problems", count=4)) == 4
    )
    assert load("my-sums")[0].family == "my-sums"
    with pytest.raises(TaskError, match=r"has no parameter 'sise'. Did you mean 'size'"):
        load("my-sums?sise=5")
    with pytest.raises(
        TaskError, match=r"no task family 'my-sum'.*Did you mean 'my-sums'.*packages: my-sums"
    ):
        load("my-sum")


def test_a_registered_name_does_not_hide_a_family(site: Path) -> None:
    install(site, "hiding", CODE, registers="word_problems")
    (task,) = load("word_problems", count=1)
    assert task.family == "word_problems" and "template" in task.metadata


def test_the_names_of_families_are_those_of_the_registry() -> None:
    assert sorted(FAMILIES) == list(FAMILY_NAMES), "else a family would be looked for as a module"


def test_packages_that_do_not_fit_are_told(site: Path) -> None:
    install(
        site, "torn-tasks", "import a_module_that_is_not_there\n", version="0.3", registers="torn"
    )
    install(site, "twice-a", CODE, registers="twice")
    install(site, "twice-b", CODE, registers="twice")
    install(site, "without-it", "", registers="lacking")
    for name, said in {
        "torn": r"'torn' of torn-tasks 0.3 \(torn_tasks:tasks\) do not import: ModuleNotFoundError",
        "twice": r"registered by twice-a 1.0 \(twice_a:tasks\) and twice-b 1.0 \(twice_b:tasks\)",
        "lacking": "of without-it 1.0 .* do not import: AttributeError",
    }.items():
        with pytest.raises(TaskError, match=said):
            load(name)
