"""Code that is run against tests: what is right scores 1 in whatever form, what is wrong or hostile 0."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from hrm_agent.environment import using_environment
from hrm_agent.environment.local.environment import LocalEnvironment
from hrm_agent.rewards import Reward, Rollout, Rubric, opened_scorer, passes_tests
from hrm_agent.trajectory import RewardScore, TaskRef
from tests.support.rewards.right_programs import ANSWERS
from tests.support.trajectory.samples import make_trajectory


@pytest.fixture(scope="module")
def environment() -> Iterator[LocalEnvironment]:
    opened = LocalEnvironment(slots=2)
    yield opened
    opened.shutdown()


async def scores(reward: Reward, asked: Sequence[tuple[str, Sequence[Any]]]) -> list[RewardScore]:
    """The score of each text with its tests."""

    async def score(text: str, tests: Sequence[Any]) -> RewardScore:
        task = TaskRef(id="t", family="mine", prompt="p", metadata={"tests": list(tests)})
        async with gate:
            (found,) = await scorer.score([Rollout(make_trajectory(answer=text, task=task))])
        return found.scores[0]

    gate = asyncio.Semaphore(4)
    async with opened_scorer(Rubric([reward])) as scorer:
        return await asyncio.gather(*(score(text, tests) for text, tests in asked))


async def test_right_code_scores_one_and_its_wrong_sibling_none(environment: LocalEnvironment) -> None:
    wrong = [(answer.text.replace(*answer.wrong), answer.tests) for answer in ANSWERS]
    right = [(answer.text, answer.tests) for answer in ANSWERS]
    with using_environment(environment):
        found = await scores(passes_tests(seconds=20.0), [*right, *wrong])
    missed = {
        answer.name: (one, other)
        for answer, one, other in zip(ANSWERS, found[: len(ANSWERS)], found[len(ANSWERS) :], strict=True)
        if (one.value, other.value) != (1.0, 0.0)
    }
    assert missed == {}
    assert len(ANSWERS) >= 60
