"""Rewards of the agent's runs. Training maximises their weighted sum.

A reward is a function whose parameters select its input: `text`, `reference`, `task`, `tool_calls`,
`trajectory` and others. It returns a number, or None for no opinion.
"""

from __future__ import annotations

from collections.abc import Sequence

from hrm_agent.rewards import Reward, Rubric, answer_is
from hrm_agent.trajectory import ToolCall

__all__ = ["rubric"]


def few_failures(tool_calls: Sequence[ToolCall]) -> float:
    """Return minus the number of failed tool calls."""
    return -float(sum(call.status is not None and call.status.is_policy_failure for call in tool_calls))


def uses_a_tool(tool_calls: Sequence[ToolCall]) -> bool:
    """True if the run called a tool."""
    return bool(tool_calls)


# The first reward, called `correct`, also decides which runs count as right in an evaluation.
rubric = Rubric([answer_is("last_number"), Reward(few_failures, weight=0.1), Reward(uses_a_tool, weight=0.1)])
