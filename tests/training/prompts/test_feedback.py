"""Feedback on a prompt: recorded runs from the view of the calls that had it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hrm_agent.graphs.parts.prompts import CRITIC_PROMPT, SOLVER_PROMPT
from hrm_agent.prompts import PromptTexts
from hrm_agent.training.prompts.feedback import feedback_on
from hrm_agent.trajectory import RunStatus, StopReason, ToolStatus, Trajectory
from tests.support.trajectory.samples import (
    identity,
    make_call,
    make_tool_call,
    make_trajectory,
)

NEW = f"{SOLVER_PROMPT} Be brief."


def said(content: str, **more: Any) -> dict[str, Any]:
    return {"type": "ai", "content": content, "tool_calls": [], **more}


def request(system: str, human: str) -> tuple[dict[str, Any], ...]:
    return {"type": "system", "content": system}, {"type": "human", "content": human}


def run(reward: float, content: str = "17 + 25 took too long") -> Trajectory:
    called = {"name": "python", "args": {"code": "17 + 25"}, "id": "tc-0", "type": "tool_call"}
    solved = make_call(
        "task-a",
        identity=identity("task-a", node="solve"),
        request=request(NEW, "Subgoal: add"),
        response=said("I add.", tool_calls=[called]),
    )
    judged = make_call(
        "task-c",
        identity=identity("task-c", node="critique"),
        request=request(CRITIC_PROMPT, "Results: 41"),
        response=said("It is not 41."),
    )
    tool = make_tool_call(status=ToolStatus.TIMEOUT, content=content, value=None)
    return make_trajectory(
        calls=(solved, judged),
        tool_calls=(tool,),
        rewards={"correct": reward, "reward": reward, "form": 0.5},
        rewards_by_call={"step": {solved.id: 0.25, judged.id: 9.0}},
        status=RunStatus.TRUNCATED,
        stop_reason=StopReason.MAX_TURNS,
        answer="41",
    )


def test_what_a_role_saw_and_what_became_of_it() -> None:
    texts = PromptTexts({"solver": NEW})
    worse, better = feedback_on("solver", [run(1.0), run(0.0)], texts)
    assert "Its reward is 1" in better["Feedback"]
    assert worse["Calls"] == [
        {
            "Request": "Subgoal: add",
            "Reply": "I add.",
            "Tool calls": [
                'python {"code": "17 + 25"}: timeout: 17 + 25 took too long',
            ],
        }
    ]
    assert worse["Last words of other roles"] == {"critique": "It is not 41."}
    lines = worse["Feedback"].splitlines()
    assert lines[0] == "The run was wrong. Its reward is 0."
    assert "Given answer: 41" in lines
    assert "Reward form: 0.5" in lines
    assert "Reward step of these calls: 0.25" in lines
    assert "The run ended as truncated (max_turns)." in lines
    assert lines[-1] == "Tool python failed. timeout: 17 + 25 took too long"
    assert "You are the solver" not in json.dumps(worse)


def test_runs_without_the_prompt_are_left_out_and_long_texts_are_cut() -> None:
    texts = PromptTexts({"solver": NEW})
    assert feedback_on("planner", [run(0.0)], texts) == []
    (entry,) = feedback_on("solver", [run(0.0, "x" * 100_000)], texts)
    assert len(json.dumps(entry)) < 6000
    assert "98500 characters" in entry["Feedback"]


@pytest.mark.parametrize(("outcome", "word"), [(0.1, "wrong"), (0.5, "wrong"), (0.6, "right")])
def test_a_run_is_right_by_the_rule_of_evaluations(outcome: float, word: str) -> None:
    ended = run(outcome).model_copy(update={"status": RunStatus.COMPLETED})
    (entry,) = feedback_on("solver", [ended], PromptTexts({"solver": NEW}))
    assert entry["Feedback"].startswith(f"The run was {word}. Its reward is {outcome}.")
