"""Scripted policies for the built-in graphs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import BaseMessage

from hrm_agent.graphs.parts.prompts import (
    CRITIC_PROMPT,
    PLANNER_PROMPT,
    SOLVER_PROMPT,
    SYNTHESIZER_PROMPT,
)

TASK_PROMPT = "What is 6 * 7?"


def call(code: str) -> str:
    return f"<reason>compute</reason><tool_call>{json.dumps({'name': 'python', 'arguments': {'code': code}})}</tool_call>"  # noqa: E501


def boxed(value: Any) -> str:
    return f"<reason>done</reason><answer>\\boxed{{{value}}}</answer>"


def multiplier(messages: Sequence[BaseMessage]) -> str:
    """A tool-loop policy that computes the product it is asked for."""
    if messages[-1].type == "tool":
        return boxed(messages[-1].text.strip())
    numbers = re.findall(r"\d+", messages[-1].text)
    return call(" * ".join(numbers))


class Roles:
    """A policy for the hierarchical graph: two independent subgoals, then one that needs both."""

    plan: Any = {
        "subgoals": [
            {"name": "apples", "goal": "3 * 4", "needs": []},
            {"name": "pears", "goal": "5 * 6", "needs": []},
            {"name": "total", "goal": "apples + pears", "needs": ["apples", "pears"]},
        ]
    }
    critiques: tuple[str, ...] = ('{"action": "submit", "hint": ""}',)

    def __init__(self) -> None:
        self.seen_by_critic: list[str] = []
        self.plans = 0

    def __call__(self, messages: Sequence[BaseMessage]) -> str:
        answers = {
            PLANNER_PROMPT: self.planner,
            SOLVER_PROMPT: self.solver,
            CRITIC_PROMPT: self.critic,
            SYNTHESIZER_PROMPT: self.synthesizer,
        }
        return answers[messages[0].text](messages)

    def planner(self, messages: Sequence[BaseMessage]) -> str:
        self.plans += 1
        return json.dumps(self.plan)

    def solver(self, messages: Sequence[BaseMessage]) -> str:
        if messages[-1].type == "tool":
            return boxed(messages[-1].text.strip())
        request = messages[-1].text
        known = re.findall(r"^(\w+ = \d+)$", request, re.MULTILINE)
        goal = request.partition("Subgoal: ")[2].splitlines()[0]
        return call("\n".join([*known, goal]))

    def critic(self, messages: Sequence[BaseMessage]) -> str:
        self.seen_by_critic.append(messages[-1].text.partition("Results:\n")[2])
        return self.critiques[min(len(self.seen_by_critic), len(self.critiques)) - 1]

    def synthesizer(self, messages: Sequence[BaseMessage]) -> str:
        last = messages[-1].text.partition("\nFormat:")[0].splitlines()[-1].partition(" = ")[2]
        return f"Answer: {last}"
