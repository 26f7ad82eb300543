"""Fault counts of a run, checked on scripted answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from langchain_core.messages import BaseMessage

from hrm_agent.graphs.parts.prompts import CRITIC_PROMPT, PLANNER_PROMPT, SYNTHESIZER_PROMPT
from hrm_agent.models.codec.calls.hermes import tool_call_text
from hrm_agent.testing import ScriptedEngine
from hrm_agent.training.config.commands import CollectConfig
from hrm_agent.training.rollout.collect import collect
from hrm_agent.training.small_policy.fault_counts import fault_shares
from hrm_agent.training.tasks.word_problems import problem

PLAN = [
    {"name": "packed", "goal": "number packed", "needs": []},
    {"name": "left", "goal": "number left over", "needs": ["packed"]},
]
GOOD = {
    "plan": json.dumps({"subgoals": PLAN}),
    "call": tool_call_text("python", {"code": "31*51"}),
    "value": r"<answer>\boxed{1581}</answer>",
    "verdict": '{"action": "accept"}',
    "text": r"<answer>\boxed{1185}</answer>",
}
NONE = dict.fromkeys(
    (
        "plan_cut",
        "solve_guess",
        "solve_formula",
        "solve_bad_call",
        "critique_reject",
        "synthesize_form",
    ),
    0,
)


def script(answers: Mapping[str, str]):
    """Every role's answer; a solver calls until a call has worked."""

    def answer(messages: Sequence[BaseMessage]) -> str:
        by_role = {PLANNER_PROMPT: "plan", CRITIC_PROMPT: "verdict", SYNTHESIZER_PROMPT: "text"}
        if part := by_role.get(messages[0].text):
            return answers[part]
        if messages[-1].type == "human":
            return answers["call"]
        return GOOD["call"] if "Error" in messages[-1].text else answers["value"]

    return answer


@pytest.mark.parametrize(
    ("changed", "made"),
    [
        ({}, {}),
        ({"plan": json.dumps({"subgoals": PLAN[:1]})}, {"plan_cut": 1, "critique_accept": 1}),
        ({"call": r"<answer>\boxed{1582}</answer>"}, {"solve_guess": 2}),
        ({"call": r"<answer>\boxed{31*51}</answer>"}, {"solve_formula": 2, "critique_accept": 1}),
        ({"call": tool_call_text("python", {"code": "(31*51"})}, {"solve_bad_call": 2}),
        ({"verdict": '{"action": "give_up"}'}, {"critique_reject": 1}),
        ({"text": "1185 pens"}, {"synthesize_form": 1}),
    ],
)
async def test_faults_are_told_from_the_record(
    changed: dict[str, str], made: dict[str, int], tmp_path: Path
) -> None:
    boxes = problem("boxes", (31, 51, 396), ("Gus", "pens"))
    assert boxes is not None
    config = CollectConfig(policy="scripted", count=1, graph="reasoning")
    with ScriptedEngine(script(GOOD | changed)) as engine:
        runs = await collect(config, tmp_path, tasks=[boxes.task()], backend=engine)
    found = fault_shares(runs)
    assert {fault: share.made for fault, share in found.items() if share.made} == made
    if not changed:
        assert {fault: share.made for fault, share in found.items()} == NONE
        assert found["solve_guess"].chances == 2 and found["plan_cut"].share == 0
