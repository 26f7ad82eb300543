"""Tasks of a search: no question is in two parts, whatever the ids."""

from __future__ import annotations

import pytest

from hrm_agent.errors import TaskError
from hrm_agent.training.prompts.optimize import split_tasks
from hrm_agent.training.tasks import Task


def test_tasks_differ_by_their_questions() -> None:
    held_out = [
        Task(prompt="Add 1.", id="a"),
        Task(prompt="Add  1.\n", id="b"),
        Task(prompt="Add 2.", id="c"),
    ]
    learned = [
        Task(prompt="Add 2.", id="d"),
        Task(prompt="Add 1.", id="a"),
        Task(prompt="Add 3.", id="e"),
        Task(prompt="Add 3.", id="f"),
        Task(prompt="Add 1.", id="g", inputs={"x": 1}),
        Task(prompt="Add 1.", id="h", inputs={"x": 2}),
        Task(prompt="Add 4.", id="i"),
    ]
    splits = split_tasks(learned, held_out, train=2, validation=1)
    assert [task.id for _, task in splits.test] == ["a", "c"]
    assert [(place, task.id) for place, task in splits.train] == [(0, "e"), (1, "g")]
    assert [(place, task.id) for place, task in splits.validation] == [(2, "h")]
    # the task `a` itself is in both lists, as in a plain file
    assert (splits.repeated, splits.leaked) == (1, 2)
    with pytest.raises(TaskError, match=r"4 others \(2 were left out"):
        split_tasks(learned, held_out, train=4, validation=1)
