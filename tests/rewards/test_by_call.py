"""Rewards of single calls: what a function returns is stored by the call's id, and shown with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from hrm_agent.errors import ConfigError
from hrm_agent.rewards import Reward, Rollout, Rubric, Scored, opened_scorer
from hrm_agent.rewards.by_call import judged_by, readable, tool_outcomes
from hrm_agent.store import RunStore
from hrm_agent.trajectory import FinishReason, RewardFault, Scoring, ToolStatus, Trajectory
from hrm_agent.trajectory.formats import read_jsonl, write_jsonl
from hrm_agent.trajectory.lint import lint
from hrm_agent.trajectory.words import rewarded, score_text
from tests.support.training.builders import place, sampled_call, tool_call, trajectory


def said(name: str, role: str, text: str, **others: Any) -> Any:
    call = sampled_call(name, [3, 4], 1)
    response = {**call.response, "content": text}
    return call.model_copy(
        update={"identity": place("t", name, role), "response": response, **others}
    )


def run(**fields: Any) -> Trajectory:
    calls = (said("plan", "plan", '{"steps": 1}'), said("solve", "solve", "seven"))
    return trajectory(1, 1.0, calls=calls, **fields).model_copy(update={"rewards": {}})


def right(text: str) -> float:
    return 1.0


async def scored(function: Callable[..., Any], whole: Trajectory, weight: float = 1.0) -> Scoring:
    rubric = Rubric([right, Reward(function, name="own", weight=weight)])
    async with opened_scorer(rubric) as scorer:
        (found,) = await scorer.score([Rollout(whole)])
    return found


async def test_values_by_call_are_named_weighted_and_beside_the_run(store: RunStore) -> None:
    whole = run(tool_calls=(tool_call("tool"),))
    plan, solve = (call.id for call in whole.own_calls)
    (tool,) = (call.id for call in whole.own_tool_calls)
    by_id = await scored(lambda calls: {solve: 0.5, tool: -1}, whole, weight=2.0)
    by_turn = await scored(lambda calls: [0.25, 0], whole, weight=2.0)
    beside = await scored(lambda calls: Scored(0.5, "half", calls={plan: 1}), whole, weight=2.0)
    assert by_id.rewards == {"right": 1.0, "correct": 1.0, "reward": 1.0}
    assert by_id.rewards_by_call == {
        "own": {solve: 0.5, tool: -1.0},
        "reward": {solve: 1.0, tool: -2.0},
    }
    assert by_turn.rewards_by_call["own"] == {plan: 0.25, solve: 0.0}
    assert beside.rewards == {"right": 1.0, "own": 0.5, "correct": 1.0, "reward": 2.0}
    assert beside.rewards_by_call["reward"] == {plan: 2.0}
    nothing = await scored(lambda calls: [], whole)
    assert nothing.rewards_by_call == {} and "by_call" not in nothing.scores[1].model_dump()

    store.journal.write_trajectory(whole.model_copy(update={"calls": (), "tool_calls": ()}))
    for call in whole.calls:
        store.journal.write_call(call)
    for each in whole.tool_calls:
        store.journal.write_tool_call(each)
    store.scorings.write([by_id], as_rewards=True)
    kept = store.journal.trajectory(whole.id)
    assert kept.rewards_by_call == by_id.rewards_by_call
    assert store.scorings.of(whole.id) == [by_id]
    assert rewarded(kept) == {solve: "own 0.5", tool: "own -1"}
    assert [score_text(score) for score in (*by_id.scores[1:], *beside.scores[1:])] == [
        "own -0.5 over 2 calls, weight 2",
        "own 0.5, 1 over 1 calls, weight 2: half",
    ]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"call-9": 1.0}, "it returned a value for the unknown call 'call-9'"),
        ([1.0], "it returned 1 values for 2 model calls"),
        ([1.0, math.inf], "it returned inf for call"),
    ],
)
async def test_values_for_other_calls_are_a_fault(given: Any, why: str) -> None:
    found = await scored(lambda calls: given, run())
    assert found.scores[1].fault is RewardFault.RAISED and why in found.scores[1].reason
    assert (found.rewards, found.rewards_by_call) == ({}, {})


async def test_a_value_that_is_no_number_is_an_error_of_the_function() -> None:
    with pytest.raises(ConfigError, match="'own' returned 'good' for calls, a str"):
        await scored(lambda calls: ["good", 1], run())
    with pytest.raises(ConfigError, match=r"'own' returned <generator.* for calls, a generator"):
        await scored(lambda calls: Scored(1.0, calls=(1 for _ in calls)), run())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"'own' returned \(0.5, 0.5\), a tuple"):
        await scored(lambda calls: (0.5, 0.5), run())
    assert (await scored(lambda calls: Scored(1.0, calls=None), run())).total == 2.0  # type: ignore[arg-type]


def test_an_export_keeps_them_and_lint_knows_the_calls(tmp_path: Path) -> None:
    whole = run()
    solve = whole.own_calls[1].id
    kept = whole.model_copy(update={"rewards_by_call": {"own": {solve: -1.0}}})
    write_jsonl([kept, whole], tmp_path / "x.jsonl")
    assert [each.rewards_by_call for each in read_jsonl(tmp_path / "x.jsonl")] == [
        kept.rewards_by_call,
        {},
    ]
    wrong = {"own": {"call-9": 1.0, solve: math.nan}}
    found = [
        each.message
        for each in lint(kept.model_copy(update={"rewards_by_call": wrong}))
        if each.name == "reward-range"
    ]
    assert found == [
        "the reward 'own' belongs to no call of this run",
        "the reward 'own' is nan",
    ]


class Plan(BaseModel):
    steps: int


def test_built_in_rewards_of_calls() -> None:
    bad = next(status for status in ToolStatus if status.is_policy_failure)
    tools = (tool_call("a"), tool_call("b", bad), tool_call("c", ToolStatus.INFRASTRUCTURE))
    assert [*tool_outcomes(tools).values()] == [0.0, -1.0, 0.0]
    calls = [
        said("1", "plan", '{"steps": 2}'),
        said("2", "plan", "two steps"),
        said("3", "solve", "seven", finish_reason=FinishReason.LENGTH),
        said("4", "critique", "revise"),
        said("5", "solve", "eight"),
        said("6", "critique", "accept"),
        said("7", "solve", "nine"),
    ]
    assert [*readable({"plan": Plan})(calls).values()] == [0.0, -1.0, -1.0, 0.0, 0.0, 0.0, 0.0]
    assert sum(readable()(calls).values()) == -1.0
    judge = judged_by("critique", "solve", lambda text: -float("revise" in text))
    assert judge(calls) == {calls[2].id: -1.0, calls[4].id: 0.0}
