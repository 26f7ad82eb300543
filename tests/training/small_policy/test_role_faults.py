"""Demonstrations of the roles with faults: their frequencies, and the graph's reaction to them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields, replace

import pytest

from hrm_agent.answers.final_answer import final_answer
from hrm_agent.answers.typed_reply import UnparsableAnswer, read_as
from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import ConfigError
from hrm_agent.graphs.parts.prompts import (
    CRITIC_PROMPT,
    PLANNER_PROMPT,
    SOLVER_PROMPT,
    SYNTHESIZER_PROMPT,
)
from hrm_agent.graphs.reasoning.plan import PlannerAnswer
from hrm_agent.tools.python_tool import tool_content
from hrm_agent.training.small_policy.role_faults import (
    CRITIC_KINDS,
    FORMULA_THOUGHT,
    NO_FAULTS,
    RoleFaults,
    faulty_demonstrations,
)
from hrm_agent.training.small_policy.traces import FAILED, GUESS_THOUGHTS
from hrm_agent.training.tasks.verify import text_answer
from hrm_agent.training.tasks.word_problems import TEMPLATES

FAULTS = RoleFaults(0.3, 0.2, 0.25, 0.3, 0.4, 0.3, 0.2)
PLANS = {tuple(name for name, _, _ in template.plan) for template in TEMPLATES}


@pytest.fixture(scope="module")
def lessons():
    return list(faulty_demonstrations("train", 1, 2500, FAULTS))


def of(lessons, prompt):
    return [lesson for lesson in lessons if lesson.messages[0].text == prompt]


def said(lesson):
    return lesson.messages[-1].text


def is_cut(lesson):
    try:
        return (
            tuple(subgoal.name for subgoal in read_as(PlannerAnswer, said(lesson)).subgoals)
            not in PLANS
        )
    except UnparsableAnswer:
        return True


def shown(lesson):
    """Results shown to a critic."""
    lines = lesson.messages[1].text.partition("\nResults:\n")[2].splitlines()
    return dict(line.split(" = ", 1) for line in lines)


def is_flawed(results):
    return tuple(results) not in PLANS or any(
        not value.replace(".", "").isdigit() for value in results.values()
    )


def share(lessons, has):
    return sum(map(has, lessons)) / len(lessons)


def test_each_role_errs_as_often_as_its_share_says(lessons):
    solvers = of(lessons, SOLVER_PROMPT)
    guesses = [
        lesson for lesson in solvers if any(thought in said(lesson) for thought in GUESS_THOUGHTS)
    ]
    others = [lesson for lesson in solvers if lesson not in guesses]
    callers = [lesson for lesson in others if FORMULA_THOUGHT not in said(lesson)]
    verdicts = of(lessons, CRITIC_PROMPT)
    flawed = [lesson for lesson in verdicts if is_flawed(shown(lesson))]
    whole = [lesson for lesson in verdicts if lesson not in flawed]
    found = RoleFaults(
        plan_cut=share(of(lessons, PLANNER_PROMPT), is_cut),
        solve_guess=len(guesses) / len(solvers),
        solve_formula=1 - len(callers) / len(others),
        solve_bad_call=share(callers, lambda lesson: len(lesson.messages) == 7),
        critique_accept=share(
            flawed, lambda lesson: json.loads(said(lesson))["action"] == "accept"
        ),
        critique_reject=share(whole, lambda lesson: json.loads(said(lesson))["action"] != "accept"),
        synthesize_form=share(
            of(lessons, SYNTHESIZER_PROMPT), lambda lesson: text_answer(said(lesson)) is None
        ),
    )
    for field in fields(RoleFaults):
        assert getattr(found, field.name) == pytest.approx(getattr(FAULTS, field.name), abs=0.02), (
            field.name
        )


def test_a_critic_sends_back_what_is_flawed_and_says_what_is_wrong():
    seen = Counter()
    for lesson in of(
        faulty_demonstrations("train", 2, 1200, NO_FAULTS, CRITIC_KINDS), CRITIC_PROMPT
    ):
        verdict, results = json.loads(said(lesson)), shown(lesson)
        seen[verdict["action"]] += 1
        assert (verdict["action"] != "accept") == is_flawed(results)
        if verdict["action"] == "revise":
            value = results[verdict["subgoal"]]
            assert value == FAILED or not value.replace(".", "").isdigit()
        if verdict["action"] == "replan":
            assert verdict["hint"].removesuffix(" is missing") not in results
    assert seen.keys() == {"accept", "revise", "replan"} and min(seen.values()) > 50


def test_roles_without_faults_make_none():
    lessons = list(faulty_demonstrations("train", 3, 600, NO_FAULTS))
    assert not any(is_cut(lesson) for lesson in of(lessons, PLANNER_PROMPT))
    assert all(len(lesson.messages) == 5 for lesson in of(lessons, SOLVER_PROMPT))
    assert all(text_answer(said(lesson)) for lesson in of(lessons, SYNTHESIZER_PROMPT))


async def test_bad_calls_fail_in_the_sandbox_as_they_are_shown(lessons):
    environment = LocalEnvironment()
    try:
        repaired = [lesson for lesson in of(lessons, SOLVER_PROMPT) if len(lesson.messages) == 7][
            :60
        ]
        for lesson in repaired:
            bad, shown_bad, good, shown_good = lesson.messages[2:6]
            assert (
                tool_content(await environment.execute(bad.tool_calls[0]["args"]["code"]))
                == shown_bad.text
            )
            assert "Error" in shown_bad.text
            assert (
                tool_content(await environment.execute(good.tool_calls[0]["args"]["code"]))
                == shown_good.text
            )
            assert final_answer(said(lesson)) == shown_good.text
    finally:
        await environment.close()


def test_a_seed_fixes_the_demonstrations():
    def first(seed, faults=FAULTS):
        return [
            [message.text for message in lesson.messages]
            for lesson in faulty_demonstrations("train", seed, 60, faults)
        ]

    assert first(1) == first(1) != first(2)
    assert first(1, replace(FAULTS, plan_cut=0.9)) != first(1)


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_what_is_no_share_is_refused(share):
    with pytest.raises(ConfigError, match="critique_reject"):
        RoleFaults(critique_reject=share)
