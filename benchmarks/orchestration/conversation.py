"""Conversations that are the same for every way: the answers of a scripted policy, and a Python
tool of no cost.

`tool_loop`: three calls of the tool, then the answer. `reasoning`: a plan of two independent
subgoals, a call and an answer for each, the critic, the synthesizer. The script is a function of
the messages, so it works for every way. It knows the role by a few words of the system turn.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from langchain_core.messages import BaseMessage

from hrm_agent.environment import Environment, ExecutionResult
from hrm_agent.environment.base import Submission
from hrm_agent.graphs.parts.prompts import (
    CRITIC_PROMPT,
    PLANNER_PROMPT,
    SOLVER_PROMPT,
    SYNTHESIZER_PROMPT,
)
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.trajectory import ToolStatus

__all__ = ["ANSWER", "CALLS", "PLAN", "PROBLEM", "Instant", "engine", "script"]

PROBLEM = "A farm keeps 23 hens and 45 cows. How many legs do they have? Answer: <number> legs"
VALUE = "226"
ANSWER = f"Answer: {VALUE} legs"
CALLS = {"tool_loop": 4, "reasoning": 7}
"""Number of model calls of each conversation."""
PLAN = json.dumps(
    {
        "subgoals": [
            {"name": "hens", "goal": "legs of 23 hens", "needs": []},
            {"name": "cows", "goal": "legs of 45 cows", "needs": []},
        ]
    }
)
CALL = (
    '<reason>I compute it with python.</reason><tool_call>{"name": "python", "arguments": {"code":'
    ' "hens, cows = 23, 45\\n2 * hens + 4 * cows"}}</tool_call>'
)
SOLVED = f"<reason>That is the value.</reason><answer>\\boxed{{{VALUE}}}</answer>"
ROLES = {
    PLANNER_PROMPT: PLAN,
    CRITIC_PROMPT: json.dumps({"action": "accept"}),
    SYNTHESIZER_PROMPT: ANSWER,
}


def script(messages: Sequence[BaseMessage]) -> str:
    """Next answer of the policy."""
    prompt = messages[0].text
    if prompt in ROLES:
        return ROLES[prompt]
    called = sum(message.type == "tool" for message in messages)
    return CALL if called < (1 if prompt == SOLVER_PROMPT else CALLS["tool_loop"] - 1) else SOLVED


@contextmanager
def engine(agent: str) -> Generator[ScriptedEngine]:
    """Engine of one measurement. It must be new, since an engine remembers every request, and CPU
    per call is divided by the number of requests.
    """
    with ScriptedEngine(script) as opened:
        yield opened
    assert opened.calls % CALLS[agent] == 0, (
        f"{opened.calls} calls in conversations of {CALLS[agent]}"
    )


class Instant(Environment):
    """Environment that runs no code and returns the known value."""

    @property
    def isolation(self) -> str:
        return "L0"

    async def run(self, submission: Submission) -> ExecutionResult:
        return ExecutionResult(ToolStatus.OK, value=VALUE)

    async def fork_session(self, source: str, target: str, *, run: str = "") -> None: ...

    async def end_session(self, session: str, *, run: str = "") -> None: ...

    async def metrics(self) -> str:
        return ""

    async def close(self) -> None: ...
