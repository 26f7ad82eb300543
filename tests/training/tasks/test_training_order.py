"""The order of the training tasks does not depend on how many are drawn."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm_agent.errors import TaskError
from hrm_agent.training.tasks import load_tasks
from hrm_agent.training.tasks.training_order import interleaved, training_tasks


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({"question": f"Q{n}", "answer": str(n)}) + "\n" for n in range(7))
    )
    return f"jsonl:{path}"


@pytest.mark.parametrize(
    "spec", ["word_problems", "reasoning_gym:gcd", "{rows}", "mix:2*word_problems,{rows}"]
)
def test_a_longer_list_begins_with_the_shorter_one(spec: str, rows: str) -> None:
    spec = spec.format(rows=rows)
    lists = [
        [task.id for task in training_tasks(spec, seed=1, count=count, block=4)]
        for count in (1, 3, 4, 9, 30)
    ]
    assert [len(each) for each in lists] == [1, 3, 4, 9, 30]
    assert all(lists[-1][: len(each)] == each for each in lists)
    other = [task.id for task in training_tasks(spec, seed=2, count=30, block=4)]
    assert other != lists[-1]


def test_a_pass_takes_each_task_once_and_the_next_one_is_in_another_order(rows: str) -> None:
    drawn = [task.id for task in training_tasks(rows, seed=0, count=21, block=3)]
    passes = [drawn[:7], drawn[7:14], drawn[14:]]
    assert all(len(set(each)) == 7 for each in passes)
    assert passes[0] != passes[1] != passes[2]


def test_blocks_are_shuffled_and_nothing_is_left_out() -> None:
    own = [task.id for task in load_tasks("word_problems", split="train", seed=3, count=20)]
    drawn = [task.id for task in training_tasks("word_problems", seed=3, count=20, block=10)]
    assert drawn != own
    assert set(drawn[:10]) == set(own[:10]) and set(drawn[10:]) == set(own[10:])


def test_a_mixture_keeps_its_shares_however_little_a_part_has(rows: str) -> None:
    drawn = training_tasks(f"mix:3*word_problems,{rows}", seed=0, count=80, block=480)
    families = Counter(task.family.partition(":")[0] for task in drawn)
    assert families == {"word_problems": 60, "jsonl": 20}
    assert Counter(task.family.partition(":")[0] for task in drawn[:8]) == {
        "word_problems": 6,
        "jsonl": 2,
    }


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=5), st.integers(1, 60))
def test_every_beginning_is_shared_out_by_weight(weights: list[float], count: int) -> None:
    order = interleaved(weights, count)
    for index, weight in enumerate(weights):
        assert abs(order.count(index) - count * weight / sum(weights)) < len(weights)


def test_a_family_that_is_unknown_is_refused() -> None:
    with pytest.raises(TaskError, match="no task family"):
        training_tasks("word_problem", seed=0, count=1, block=4)
