"""Tasks of data sets: their verifiers, splits and versions, and data sets of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.errors import TaskError
from hrm_agent.training.datasets import ExampleSource, add_examples, make_example
from hrm_agent.training.tasks import Task, load_tasks, run_verifier_of, verifier_of
from hrm_agent.training.tasks.dataset import example_of, with_versions
from hrm_agent.training.tasks.sources import fixed_tasks, keep_sources
from tests.support.trajectory.samples import make_trajectory

SOURCE = ExampleSource(run="r", trajectory="t")


def run_of(task: Task, **changes: Any) -> Any:
    return make_trajectory().model_copy(update={"task": task.ref(), **changes})


def add(name: str, tasks: list[Task], folder: Path = Path("datasets")) -> None:
    made = [example for task in tasks if (example := example_of(run_of(task))) is not None]
    add_examples(folder, name, made)


def loaded(spec: str, split: str = "eval", **options: Any) -> list[Task]:
    return load_tasks(spec, split=split, seed=0, **options)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_examples_are_verified_as_their_tasks(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"question": "6*7?", "answer": "42"}\n')
    originals = [
        *load_tasks("jsonl:q.jsonl", split="train", seed=0),
        *load_tasks("reasoning_gym:gcd", split="train", seed=3, count=2),
    ]
    add("d", originals)
    found = {task.prompt: task for task in loaded("dataset:d?split=all")}
    assert found.keys() == {task.prompt for task in originals}
    for original in originals:
        task = found[original.prompt]
        assert original.verify is not None and task.verify is not None
        right = f"<answer>\\boxed{{{original.answer}}}</answer>"
        for text in (right, "<answer>\\boxed{nothing}</answer>"):
            assert task.verify(text) == original.verify(text)
        assert task.verify(right) == 1
        # a recorded run of the example has the same verifier, and makes the same example
        again = verifier_of(task.ref())
        assert again is not None and again(right) == 1
        assert example_of(run_of(task)) == example_of(run_of(original))
        assert run_verifier_of(task.ref()) is None


def test_the_split_the_seed_and_the_count_choose() -> None:
    add("d", [Task(prompt=f"{n}?", id=str(n), family="f") for n in range(60)])
    both = [{task.id for task in loaded("dataset:d", split)} for split in ("train", "eval")]
    assert not both[0] & both[1]
    assert both[0] | both[1] == {task.id for task in loaded("dataset:d@1?split=all")}
    first = [task.id for task in loaded("dataset:d", "train", count=5)]
    assert first == [task.id for task in loaded("dataset:d", "train")][:5]
    others = load_tasks("dataset:d", split="train", seed=1, count=5)
    assert first != [task.id for task in others]
    assert {task.family for task in others} == {"dataset:d@1"}


def test_a_run_keeps_the_version_that_it_began_with(tmp_path: Path) -> None:
    add("d", [Task(prompt=f"{n}?", family="f") for n in range(9)])
    run = tmp_path / "runs" / "x"
    run.mkdir(parents=True)
    mixture = "mix:2.5*dataset:d,1*word_problems"
    assert fixed_tasks(mixture, run) == "mix:2.5*dataset:d@1,1*word_problems"
    # the configuration is written first
    (run / "config.toml").write_text(f"tasks = '{fixed_tasks(mixture, run)}'\n")
    add("d", [Task(prompt="newer?", family="f")])
    assert fixed_tasks(mixture, run) == "mix:2.5*dataset:d@1,1*word_problems"
    keep_sources(fixed_tasks(mixture, run), "train", run)
    (run / "config.toml").unlink()
    add("d", [Task(prompt="new?", family="f")])
    assert fixed_tasks(mixture, run) == "mix:2.5*dataset:d@1,1*word_problems"
    assert fixed_tasks(mixture, tmp_path) == "mix:2.5*dataset:d@3,1*word_problems"
    assert with_versions("dataset:d?split=all", ["dataset:d@1"]) == "dataset:d@3?split=all"
    for spec in ("dataset:d@1", "word_problems", "mix:2*word_problems"):
        assert fixed_tasks(spec, run) == spec


def test_the_code_of_a_users_tasks_runs_only_if_the_user_names_their_run(tmp_path: Path) -> None:
    """The author of a data set could otherwise name any code."""
    code = "import pathlib\npathlib.Path('ran').touch()\n"
    code += "from hrm_agent.training.tasks import Task\n"
    code += "tasks = [Task(prompt='6*7?', verify=lambda text: float('42' in text))]\n"
    (tmp_path / "own.py").write_text(code)
    run = tmp_path / "run"
    run.mkdir()
    keep_sources("./own.py:tasks", "train", run)
    add("d", load_tasks("./own.py:tasks", split="train", seed=0))
    (tmp_path / "ran").unlink()
    (task,) = loaded("dataset:d?split=all")
    assert task.verify is None and not (tmp_path / "ran").exists()
    (task,) = loaded("dataset:d?split=all&run=run")
    assert task.verify is not None and task.verify("It is 42.") == 1


HOSTILE: list[dict[str, Any]] = [
    {"family": "reasoning_gym:gcd", "task": "reasoning_gym:gcd:train:0:999999999999"},
    {"family": "reasoning_gym:gcd", "task": "x"},
    {"family": "reasoning_gym:gcd", "task": f"a:b:0:{'9' * 5_000}"},
    {"family": "ifeval", "metadata": {"instructions": "x"}},
    {"family": "bfcl", "metadata": {"bfcl": 7}},
    {"family": "./evil.py:tasks", "metadata": {"drawn": {"place": 0}}},
    {"family": "store:x", "metadata": {}},
    {"family": "dataset:d", "metadata": {}},
    {"family": "verifiers:evil", "metadata": {"drawn": {"place": []}}},
    {"family": "mix:", "metadata": {"inputs": 7, "history": "x"}},
]


@pytest.mark.parametrize("values", HOSTILE)
def test_a_data_set_of_others_names_no_code_and_ends_no_command(
    values: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    facts: dict[str, Any] = {"task": "1", "metadata": {}, **values}
    made = make_example(prompt="?", answer=None, source=SOURCE, **facts)
    add_examples(Path("datasets"), "d", [made])
    (task,) = loaded("dataset:d?split=all")
    assert task.verify is None and json.dumps(task.ref().model_dump())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dataset:none", "There is no data set 'none' in datasets. Data sets in datasets: d."),
        ("dataset:", "'' cannot be the name"),
        ("dataset:../d", "cannot be the name"),
        ("dataset:d@2", "has no version 2. It has: 1."),
        ("dataset:d@newest", "'newest' is not a version"),
        ("dataset:d?splits=all", "has no parameter 'splits'. Did you mean 'split'?"),
        ("dataset:d?split=test", "has no split 'test'. Splits: train, eval, all."),
        ("dataset:d?folder=other", "There is no data set 'd' in other."),
        ("dataset:d@1?split=train", "has no example in the split 'train' (0 train, 1 eval)"),
    ],
)
def test_wrong_specs_are_named(spec: str, message: str) -> None:
    prompt = next(f"{n}?" for n in range(99) if example(f"{n}?").split(0.2) == "eval")
    add_examples(Path("datasets"), "d", [example(prompt)])
    with pytest.raises(TaskError) as raised:
        loaded(spec)
    assert message in str(raised.value)


def example(prompt: str) -> Any:
    return make_example(
        family="f", prompt=prompt, answer=None, metadata={}, task="1", source=SOURCE
    )
