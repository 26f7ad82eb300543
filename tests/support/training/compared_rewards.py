"""Rewards that tests compare with the verifier."""

from __future__ import annotations

from collections.abc import Sequence

from hrm_agent.rewards import Reward, Rubric, answer_is
from hrm_agent.trajectory import ToolCall

__all__ = ["constant", "half", "no_tool", "scaled"]


def no_tool(tool_calls: Sequence[ToolCall]) -> float:
    """Pay for answers without a tool call."""
    return float(not tool_calls)


def constant(text: str) -> float:
    """Pay for everything."""
    del text
    return 1.0


def half(tool_calls: Sequence[ToolCall]) -> float:
    """Fail for answers without a tool call."""
    if not tool_calls:
        raise RuntimeError("no tool")
    return 1.0


scaled = Rubric([answer_is(weight=5), Reward(constant, weight=-2)])
