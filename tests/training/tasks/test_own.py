"""Tasks of users' own code: valid attributes, and the errors for others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from hrm_agent.errors import TaskError
from hrm_agent.training.tasks import Task, load_tasks, refuse_unscored
from hrm_agent.training.tasks import own as own_tasks
from hrm_agent.training.tasks.training_order import training_tasks
from hrm_agent.trajectory import TASK_INPUTS
from tests.support.graphs.scripts import boxed

HERE = __name__
ROWS = [
    {"question": "6 * 7?", "answer": 42, "topic": "products"},
    {"prompt": "1 + 1?", "answer": "work\n#### 2"},
]
TEXTS = ("Name a prime.", "Name a prime.", "Name a square.")
SPLITS = {"train": ["a", "b"], "eval": ["c"]}
TASKS = [
    Task(prompt="Say yes.", id="yes", verify=lambda text: float("yes" in text)),
    Task(prompt="Say no."),
]
INPUTS = [
    {
        "id": 1,
        "inputs": {"messages": [{"role": "system", "content": "Be brief."}, {"content": "Hi?"}]},
    }
]
ENDLESS = itertools.count()
NUMBER = 7
TEXT = "a prompt"
EMPTY: list[Any] = []
unknown = vars


def drawn(split: str, seed: int, size: int = 3, *, kind: str = "sum") -> Iterator[dict[str, Any]]:
    for i in range(size):
        yield {"prompt": f"{split} {seed} {kind} {i}?", "answer": i, "id": f"{split}-{i}"}


def endless(seed: int) -> Iterator[str]:
    return (f"{seed}: {i}" for i in itertools.count())


def exactly(count: int | None) -> list[str]:
    return [f"{i} of {count}" for i in range(count or 2)]


def needy(difficulty: int) -> list[str]:
    return [str(difficulty)]


def anything(**options: Any) -> list[str]:
    return [f"{name}={value}" for name, value in options.items()]


def failing(split: str) -> list[str]:
    if split == "eval":
        raise LookupError("no held-out tasks")
    return ["a"]


def failing_later() -> Iterator[str]:
    yield "a"
    raise LookupError("no more")


async def asynchronous() -> list[str]:
    return ["a"]


def load(
    attribute: str, split: str = "eval", seed: int = 0, count: int | None = None
) -> list[Task]:
    return load_tasks(f"{HERE}:{attribute}", split=split, seed=seed, count=count)


def items(*found: Any) -> list[Task]:
    return own_tasks.tasks_of_attribute("x:y", list(found), split="eval", seed=0)


def test_mappings_and_texts_become_tasks() -> None:
    first, second = load("ROWS")
    assert (first.prompt, first.answer, first.metadata["topic"]) == ("6 * 7?", "42", "products")
    assert (
        first.verify is not None and first.verify(boxed(42)) == 1 and first.verify(boxed(41)) == 0
    )
    assert (second.answer, second.family) == ("2", f"{HERE}:ROWS")
    assert load("ROWS", count=1) == [first]
    texts = load("TEXTS")
    assert [task.prompt for task in texts] == list(TEXTS)
    assert all(task.verify is None and task.answer is None for task in texts)
    assert texts[1].id == f"{texts[0].id}-2", "one content twice is two tasks"
    assert load("ROWS")[0].id == first.id == items(*reversed(ROWS))[1].id, (
        "an id stays where the order changes"
    )


def test_tasks_bring_their_own_verifier() -> None:
    yes, no = load("TASKS")
    assert (
        (yes.id, yes.family) == ("yes", f"{HERE}:TASKS")
        and yes.verify is not None
        and no.verify is None
    )
    assert (yes.verify("yes"), yes.verify("no")) == (1.0, 0.0) and no.id
    with pytest.raises(
        TaskError, match=r"1 of 2 tasks of 'x' have neither .*the first: '\w+'.*--rewards"
    ):
        refuse_unscored([yes, no], "x")
    refuse_unscored([yes], "x")


def test_inputs_stand_for_the_prompt() -> None:
    (task,) = load("INPUTS")
    assert (task.id, task.prompt) == ("1", "Hi?")
    assert task.ref().metadata[TASK_INPUTS] == INPUTS[0]["inputs"]
    (task,) = items({"inputs": {"left": 6, "right": 7}})
    assert task.prompt == '{"left": 6, "right": 7}'


def test_a_function_is_given_what_it_has_parameters_for() -> None:
    assert [task.prompt for task in load("drawn", "train", 5)] == [
        f"train 5 sum {i}?" for i in range(3)
    ]
    assert [task.id for task in load("drawn?size=9&kind=product", count=2)] == ["eval-0", "eval-1"]
    assert load("drawn?size=1&kind=product")[0].prompt == "eval 0 product 0?"
    assert [task.prompt for task in load("endless", seed=3, count=2)] == ["3: 0", "3: 1"]
    assert len(load("exactly")) == 2 and load("exactly", count=4)[3].prompt == "3 of 4"
    assert [task.prompt for task in load("anything?x=1&y=two")] == ["x=1", "y=two"]
    assert load("failing", "train")[0].prompt == "a"


def test_splits_are_those_of_a_mapping_or_one() -> None:
    assert [task.prompt for split in ("train", "eval") for task in load("SPLITS", split)] == [
        "a",
        "b",
        "c",
    ]
    assert load("TEXTS", "train") == load("TEXTS", "eval")


def test_training_goes_through_a_list_again_and_again() -> None:
    drawn_tasks = training_tasks(f"{HERE}:TEXTS", seed=0, count=7, block=2)
    assert len(drawn_tasks) == 7 and {task.prompt for task in drawn_tasks[:3]} == set(TEXTS)
    mixed = training_tasks(f"mix:2*{HERE}:TEXTS,1*word_problems", seed=0, count=6, block=2)
    assert sum(task.family == f"{HERE}:TEXTS" for task in mixed) == 4


@pytest.mark.parametrize(
    ("attribute", "said"),
    [
        ("MISSING", "has no attribute 'MISSING'"),
        ("ROW", "Did you mean 'ROWS'"),
        ("NUMBER", "is of type int, not a list of tasks"),
        ("TEXT", "is of type str, not a list of tasks"),
        ("Task", "is a class"),
        ("asynchronous", "is an async function"),
        ("ENDLESS", "can be read only once"),
        ("EMPTY", "has no task"),
        ("unknown", "failed: ValueError: "),
        ("needy", "the function needs difficulty"),
        ("needy?dificulty=3", "has no parameter 'dificulty'. Did you mean 'difficulty'"),
        ("drawn?seed=3", "Give it by --seed"),
        ("ROWS?size=3", "takes no parameters"),
        ("failing", "LookupError: no held-out tasks"),
        ("failing_later", "LookupError: no more"),
    ],
)
def test_an_attribute_that_is_none_is_told(attribute: str, said: str) -> None:
    with pytest.raises(TaskError) as caught:
        load(attribute)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_split_and_a_module_of_python_are_told() -> None:
    with pytest.raises(TaskError, match=r"without the split 'dev'. It has: train, eval"):
        load("SPLITS", "dev")
    with pytest.raises(TaskError, match=r"'subprocess' is a module of Python itself"):
        load_tasks("subprocess:getoutput?cmd=true", split="eval", seed=0)
    with pytest.raises(
        TaskError, match=r"no task family 'jsonll', and no module .*Did you mean 'jsonl'"
    ):
        load_tasks("jsonll:rows", split="eval", seed=0)


def test_an_endless_list_needs_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_tasks, "MAX_ITEMS", 50)
    with pytest.raises(TaskError, match=r"more than 50 tasks .*--count N"):
        load("endless")
    assert len(load("endless", count=60)) == 60
    assert len(load("failing_later", count=1)) == 1


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"answer": 1}, "item 0: it has no prompt. Give it a prompt or a question; it has answer."),
        ({"prompt": 7}, "the prompt is a int, not a text"),
        (
            {"prompt": [{"role": "user", "content": "a"}]},
            "the prompt is a list, not a text. Messages go into inputs",
        ),
        ({"prompt": " "}, "the prompt is empty"),
        ({"prompt": "\ud83d"}, "half a character"),
        ({"prompt": "a", "answer": [1]}, "answer is a list"),
        ({"prompt": "a", "answer": "####"}, "the answer is empty"),
        ({"prompt": "a", "answer": float("nan")}, "answer is nan"),
        ({"prompt": "a", "id": {}}, "id is a dict"),
        ({"prompt": "a", "metadata": [1]}, "metadata is a list"),
        ({"prompt": "a", "metadata": {"inputs": 1}}, "the key 'inputs' of metadata is reserved"),
        ({"prompt": "a", "seen": {1, 2}}, "'seen' cannot be stored as JSON"),
        ({"prompt": "a", "share": float("inf")}, "'share' cannot be stored as JSON"),
        ({"inputs": [1]}, "inputs is of type list"),
        (Task(prompt="a", verify="yes"), "verify is of type str"),
        (Task(prompt="a", id=3), "id is of type int. It must be a text"),
        (Task(prompt="a", answer=3), "answer is of type int"),
        (Task(prompt="a", id="\ud83d"), "'id' holds half a character"),
        (Task(prompt="a", metadata=[1]), "metadata is of type list"),
        (7, "a int. An item is a text, a mapping with a prompt, or a Task"),
        (None, "a NoneType"),
    ],
)
def test_an_item_that_is_none_is_told(item: Any, said: str) -> None:
    with pytest.raises(TaskError) as caught:
        items(item)
    assert said in str(caught.value)


def test_an_id_that_comes_twice_is_told_with_its_places() -> None:
    with pytest.raises(TaskError, match="the id '1' stands at items 0, 2"):
        items({"prompt": "a", "id": 1}, "b", {"prompt": "c", "id": "1"})
