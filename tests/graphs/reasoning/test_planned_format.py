"""Planners may define the format of the final answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import BaseMessage

from hrm_agent.answers.typed_reply import read_as
from hrm_agent.environment import LocalEnvironment
from hrm_agent.graphs.parts.prompts import PLANNER_FORMAT_PROMPT, PLANNER_PROMPT
from hrm_agent.graphs.reasoning.plan import PlannerAnswer
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.store import RunStore
from hrm_agent.trajectory import TaskRef, Trajectory
from hrm_agent.trajectory.lint import lint
from tests.support.graphs.scripts import Roles


class Formatted(Roles):
    """A planner that gives a format with its plan."""

    def __init__(self, answer_format: Any, replies: Sequence[str] = ("Answer: 42",)) -> None:
        super().__init__()
        self.plan = {**Roles.plan, "answer_format": answer_format}
        self.replies, self.asked, self.system = list(replies), list[str](), ""

    def __call__(self, messages: Sequence[BaseMessage]) -> str:
        if messages[0].text in (PLANNER_PROMPT, PLANNER_FORMAT_PROMPT):
            self.system = messages[0].text
            return self.planner(messages)
        return super().__call__(messages)

    def synthesizer(self, messages: Sequence[BaseMessage]) -> str:
        self.asked.append(messages[-1].text)
        return self.replies[len(self.asked) - 1]


async def run(
    roles: Formatted,
    store: RunStore,
    environment: LocalEnvironment,
    problem: str = "Apples and pears.",
    **context: Any,
) -> Trajectory:
    with ScriptedEngine(roles) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        task = TaskRef(id="1", family="test", prompt=problem)
        return await runner.run(Episode(task, "thread", graph="reasoning", context=context, seed=1))


async def test_the_synthesizer_is_shown_it_and_held_to_it(
    store: RunStore, environment: LocalEnvironment
) -> None:
    roles = Formatted("Answer: <integer>", ["It is 42, I think.", "Answer: 42"])
    trajectory = await run(roles, store, environment)
    assert roles.asked[0].endswith("\nFormat: Answer: <integer>")
    assert "it has to be exactly of the form Answer: <integer>" in roles.asked[1]
    assert trajectory.answer == "Answer: 42" and lint(trajectory) == []
    assert (await replay_async(store, "thread")).equal


async def test_one_in_free_words_is_shown_and_not_checked(
    store: RunStore, environment: LocalEnvironment
) -> None:
    roles = Formatted("one whole number,\nwithout a unit", ["forty-two"])
    trajectory = await run(roles, store, environment)
    assert roles.asked == [roles.asked[0]] and roles.asked[0].endswith(
        "\nFormat: one whole number, without a unit"
    )
    assert trajectory.answer == "forty-two"


@pytest.mark.parametrize(
    ("problem", "context"),
    [
        ("Apples and pears. Return exactly: 'Answer: <fruit>'.", {}),
        ("Apples.", {"final_format": "Answer: <fruit>"}),
    ],
)
async def test_what_the_person_asks_for_counts_before_it(
    problem: str, context: dict[str, Any], store: RunStore, environment: LocalEnvironment
) -> None:
    roles = Formatted("Result: <number>")
    trajectory = await run(roles, store, environment, problem, **context)
    assert "Result: <number>" not in roles.asked[0] and trajectory.answer == "Answer: 42"


async def test_a_planner_is_asked_for_it_where_the_context_says_so(
    store: RunStore, environment: LocalEnvironment
) -> None:
    roles = Formatted("")
    await run(roles, store, environment, planned_format=True)
    assert roles.system == PLANNER_FORMAT_PROMPT
    roles = Formatted("")
    with ScriptedEngine(roles) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        task = TaskRef(id="1", family="test", prompt="Apples and pears.")
        trajectory = await runner.run(Episode(task, "other", graph="reasoning", seed=1))
    assert roles.system == PLANNER_PROMPT and "Format:" not in roles.asked[0]
    states = [found.checkpoint["channel_values"] for found in store.checkpointer.list(THREAD)]
    assert trajectory.answer == "Answer: 42" and not any(
        "answer_format" in state for state in states
    )


THREAD: Any = {"configurable": {"thread_id": "other", "checkpoint_ns": ""}}


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ('"Answer: <x>"', "Answer: <x>"),
        ("7", ""),
        ("null", ""),
        ('["a"]', ""),
        (f'"{"x" * 999}"', "x" * 200),
    ],
)
def test_whatever_a_planner_gives_is_read(given: str, read: str) -> None:
    plan = read_as(PlannerAnswer, f'{{"subgoals": ["a"], "answer_format": {given}}}')
    assert (plan.answer_format, len(plan.subgoals)) == (read, 1)


def test_old_plans_are_plans_and_asked_for_by_the_same_schema() -> None:
    assert read_as(PlannerAnswer, '["a", "b"]').answer_format == ""
    assert list(PlannerAnswer.model_json_schema()["properties"]) == ["subgoals"], (
        "requests are known by it"
    )
