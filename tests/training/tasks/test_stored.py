"""Tasks from the prompts of stored runs: each once, verified as before, in an order drawn from the
seed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from hrm_agent.errors import TaskError
from hrm_agent.runtime.serving.feedback import add_feedback
from hrm_agent.store import open_store
from hrm_agent.training.tasks import load_tasks, verifier_of
from hrm_agent.training.tasks.sources import keep_sources
from hrm_agent.trajectory import TaskRef, Trajectory
from tests.support.trajectory.samples import make_trajectory


def of(number: int, **task: Any) -> Trajectory:
    facts: dict[str, Any] = {
        "id": f"wp-{number // 2}", "family": "word_problems", "prompt": f"What is {number // 2}?", "answer": "42",
    }  # fmt: skip
    return make_trajectory(
        id=f"t{number}",
        thread_id=f"thread-{number}",
        calls=(),
        tool_calls=(),
        task=TaskRef(**facts | task),
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with open_store(tmp_path / "store.db") as store:
        for number in range(8):
            store.journal.write_trajectory(of(number))
        said = {"id": "chat-1", "family": "chat", "prompt": "Hello?", "answer": None}
        for number in (8, 9):
            store.journal.write_trajectory(of(number, **{**said, "id": f"chat-{number}"}))
        add_feedback(store, {"thread": "thread-8", "score": "down"})
        add_feedback(store, {"thread": "thread-1", "score": 0.5})
    return tmp_path


def test_each_prompt_is_a_task_once_in_the_order_of_the_seed(run: Path) -> None:
    first = load_tasks(f"store:{run}", split="train", seed=1)
    assert sorted(task.prompt for task in first) == ["Hello?", *(f"What is {i}?" for i in range(4))]
    assert [task.id for task in first] == [
        task.id for task in load_tasks(f"store:{run}", split="eval", seed=1)
    ]
    orders = {
        tuple(task.id for task in load_tasks(f"store:{run}", split="train", seed=seed))
        for seed in range(5)
    }
    assert len(orders) > 1
    assert load_tasks(f"store:{run}", split="train", seed=1, count=2) == first[:2]


def test_a_task_is_verified_as_it_was_where_it_is_from(run: Path) -> None:
    tasks = {task.prompt: task for task in load_tasks(f"store:{run}", split="train", seed=1)}
    sum_task = tasks["What is 3?"]
    assert sum_task.verify(r"<answer>\boxed{42}</answer>") == 1
    found = verifier_of(sum_task.ref())
    assert found is not None and found(r"<answer>\boxed{41}</answer>") == 0
    assert verifier_of(tasks["Hello?"].ref()) is None


def test_tasks_of_a_module_are_verified_by_what_their_run_was_read_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("evens.py").write_text(
        "from hrm_agent.training.tasks import Task\n"
        "def tasks():\n"
        "    even = lambda text: float(int(text) % 2 == 0)\n"
        "    return [Task(prompt=f'An even number over {n}?', verify=even) for n in range(5)]\n"
    )
    spec, run = "./evens.py:tasks", tmp_path / "run"
    run.mkdir()
    keep_sources(spec, "train", run)
    with open_store(run / "store.db") as store:
        for number, task in enumerate(load_tasks(spec, split="train", seed=1)):
            store.journal.write_trajectory(of(number, **task.ref().model_dump()))
    tasks = load_tasks(f"store:{run}", split="train", seed=1)
    assert [[task.verify("12"), task.verify("13")] for task in tasks] == [[1.0, 0.0]] * 5
    (run / "tasks.json").unlink()  # a record from elsewhere names code that is not run
    assert all(
        cast("Any", task.verify) is None
        for task in load_tasks(f"store:{run}", split="train", seed=1)
    )


def test_a_rubric_takes_what_it_scored(run: Path) -> None:
    tasks = load_tasks(f"store:{run}?rubric=feedback", split="train", seed=1)
    assert sorted(task.prompt for task in tasks) == ["Hello?", "What is 0?"]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("store:nowhere", "There is no store at"),
        (
            "store:{run}?rubrik=feedback",
            r"no parameter 'rubrik'.*Did you mean|no parameter 'rubrik'",
        ),
        ("store:{run}?rubric=mine", "no run with scores by 'mine'"),
        ("store:{run}?run=other", "has no runs of 'other'"),
    ],
)
def test_what_is_not_there_is_told(spec: str, said: str, run: Path) -> None:
    with pytest.raises(TaskError, match=said):
        load_tasks(spec.format(run=run), split="train", seed=1)
