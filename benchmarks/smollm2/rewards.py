"""Reward of the training of SmolLM2: a right answer, and a fifth as much for the reference's steps.

A small model solves so few of the problems that nearly all groups would be all wrong, and would
teach nothing. The share of the reference's intermediate results that the tool returned tells such
rollouts apart. The outcome, by which rollouts are selected and evaluations count, is the answer
alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchmarks.smollm2.problems import number_of
from hrm_agent.rewards import Reward, Rubric, answer_is
from hrm_agent.trajectory import TaskRef, ToolCall, ToolStatus

__all__ = ["role_rubric", "rubric", "steps_found"]

_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def steps_found(tool_calls: Sequence[ToolCall], task: TaskRef) -> float | None:
    """Share of the reference's results that calls of the tool returned, each call one number. The
    last result, which is the answer, counts as all. Other numbers of the problem do not count.

    None for a task without steps.
    """
    if "steps" not in task.metadata:
        return None
    *steps, answer = task.metadata["steps"]
    given = {number_of(text) for text in _NUMBER.findall(task.prompt)}
    results = {number_of(call.content) for call in tool_calls if call.status is ToolStatus.OK}
    if answer in results:
        return 1.0
    wanted = {*steps, answer} - given
    return len(wanted & results) / len(wanted) if wanted else 0.0


rubric = Rubric([answer_is("boxed"), Reward(steps_found, weight=0.2)])
"""Rubric of the tool loop, whose answer stands in a box."""
role_rubric = Rubric([answer_is("last_number"), Reward(steps_found, weight=0.2)])
"""Rubric of the four roles, whose synthesizer writes a line with a number."""
