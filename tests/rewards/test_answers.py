"""Answer readers, comparisons of answers, and code that is run against tests."""

from __future__ import annotations

from typing import Any

import pytest

from hrm_agent.environment import using_environment
from hrm_agent.environment.local.environment import LocalEnvironment
from hrm_agent.errors import ConfigError
from hrm_agent.rewards import (
    Reward,
    Rollout,
    Rubric,
    answer_is,
    comparison_of,
    opened_scorer,
    passes_tests,
    reader_of,
)
from hrm_agent.trajectory import RewardFault, RewardScore, TaskRef
from tests.support.rewards.hostile_texts import hostile_texts, slow_or_broken
from tests.support.trajectory.samples import make_trajectory

READ = [
    ("last_number", "Final answer: 226", "226"),
    ("last_number", "It is 3 of 4, that is -1,234.50.", "-1,234.50"),
    ("last_number", "from 5-3 = 2 follows x = 1/2", "1/2"),
    ("last_number", "1e3 is .5?", ".5"),
    ("last_number", "<think>7</think> none", None),
    ("last_line", "a\nb \n\n", "b"),
    ("boxed", r"so \boxed{4}", "4"),
    ("boxed", r"\boxed{3} <answer>\boxed{5}</answer> \boxed{6}", "5"),
    ("tag:result", "<result> 5 </result> and <result>6</result>", "6"),
    ("tag:result", "</result> 5", None),
    ("json:answer.0", 'First {"answer": [1]}, then {"answer": [2, 3]}', "2"),
    ("json:answer", "none", None),
    ("regex:[Aa]nswer is (\\w+)", "The answer is A, or the answer is B.", "B"),
    ("text", "  all of it ", "all of it"),
]
EQUAL = [
    ("exact", "1/2", "0.5", True),
    ("exact", "0.333", "1/3", False),
    ("numeric:0.01", "0.333", "1/3", True),
    ("numeric:0.001", "1001", "1000", True),
    ("numeric:0.001", "1002", "1000", False),
    ("numeric", "blue", "blue", True),
    ("text", "Blue  sky", "blue sky", True),
    ("set", "{3, 1, 2}", "1,2,3", True),
    ("set", "1, 2", "1, 2, 3", False),
    ("set", "1,000, 5", "5, 1000", True),
    ("symbolic", "x(x+1)", "x^2 + x", True),
    ("symbolic", r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}", True),
    ("symbolic", "x^2", "x^3", False),
]


@pytest.mark.parametrize(("name", "text", "found"), READ)
def test_a_reader_finds_the_answer_in_the_models_own_words(
    name: str, text: str, found: str | None
) -> None:
    assert reader_of(name)(text) == found


@pytest.mark.parametrize(("name", "answer", "reference", "equal"), EQUAL)
def test_a_comparison_says_what_is_equal(
    name: str, answer: str, reference: str, equal: bool
) -> None:
    assert comparison_of(name)(answer, reference) is equal


@pytest.mark.parametrize("name", ["regex:(", "tag:", "json", "numeric"])
def test_a_reader_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"no answer reader|not a valid regular expression"):
        reader_of(name)


async def scored(reward: Reward, text: str, **task: Any) -> RewardScore:
    ref = TaskRef(id="t", family="mine", prompt="p", **task)
    async with opened_scorer(Rubric([reward])) as scorer:
        (found,) = await scorer.score([Rollout(make_trajectory(answer=text, task=ref))])
    return found.scores[0]


async def test_an_answer_is_read_compared_and_explained() -> None:
    reward = answer_is("last_number")
    right, wrong = (
        await scored(reward, "Final answer: 226", answer="226"),
        await scored(reward, "No.", answer="226"),
    )
    assert (right.name, right.value, right.reason) == ("correct", 1.0, "read '226'")
    assert (wrong.value, wrong.reason) == (0.0, "no answer was found in the final text")
    assert (await scored(reward, "226")).value is None, (
        "without a reference there is nothing to say"
    )


async def test_a_function_is_a_reader_and_a_comparison() -> None:
    reward = answer_is(lambda text: text[-1:], lambda a, b: a == b, name="last")
    assert (await scored(reward, "xyz", answer="z")).value == 1.0


TESTS = [
    "assert add(2, 3) == 5",
    {"call": "add([1], [2])", "equals": [1, 2]},
    {"stdin": "2 3", "stdout": "5\n"},
]
ADD = """Here it is:
```python
def add(a, b):
    return a + b

if __name__ == "__main__":
    try:
        a, b = map(int, input().split())
        print(add(a, b))
    except EOFError:
        pass
```"""


EQUAL_TO_ALL = """```python
class Equal:
    def __eq__(self, other):
        return True
    def __repr__(self):
        return "..."

def add(a, b):
    return Equal()
```"""
CASES = [
    (ADD, 1.0, "3 of 3"),
    (ADD.replace("a + b", "a - b"), 0.0, "0 of 3"),
    ("```python\nimport sys\nsys.exit(0)\n```", 0.0, "0 of 3"),
    (EQUAL_TO_ALL, 0.0, "0 of 3"),
    ("```python\nwhile True: pass\n```", 0.0, "0 of 3"),
    ("```python\nadd(", 0.0, "no code was found"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "value", "reason"), CASES)
async def test_code_is_run_against_tests_whose_answers_it_does_not_see(
    answer: str, value: float, reason: str
) -> None:
    environment = LocalEnvironment(slots=1)
    with using_environment(environment):
        found = await scored(passes_tests(seconds=1.0), answer, metadata={"tests": TESTS})
    await environment.close()
    assert found.value == value
    assert reason in found.reason


async def test_a_test_that_the_code_itself_could_pass_is_refused() -> None:
    found = await scored(passes_tests(), ADD, metadata={"tests": ["assert check(add)"]})
    assert found.fault is RewardFault.RAISED
    assert "is not of the form `assert CALL == LITERAL`" in found.reason
    assert (await scored(passes_tests(), ADD)).value is None


def test_drawn_hostile_texts_are_read_in_their_time_and_equal_nothing() -> None:
    assert slow_or_broken(hostile_texts(seed=0, count=60, longest=50_000)) == []


@pytest.mark.slow
@pytest.mark.whole
def test_many_drawn_hostile_texts_are_read_in_their_time_and_equal_nothing() -> None:
    assert slow_or_broken(hostile_texts(seed=1, count=300, longest=100_000)) == []
