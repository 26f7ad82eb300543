"""Prompts that all ways to sample are given."""

from __future__ import annotations

from langchain_core.messages import HumanMessage, SystemMessage

from hrm_agent.graphs.parts.prompts import TOOL_LOOP_PROMPT, loop_system_turn
from hrm_agent.models.codec.opening import load_codec_of
from hrm_agent.training.tasks import load_tasks

__all__ = ["GROUP", "prompts_of"]

GROUP = 8
"""Number of answers to each prompt."""


def prompts_of(folder: str, count: int) -> list[list[int]]:
    """Prompts of the tool loop for school problems, `GROUP` of each."""
    codec = load_codec_of(folder)
    system = SystemMessage(loop_system_turn(TOOL_LOOP_PROMPT, fenced=True))
    tasks = load_tasks("reasoning_gym:gsm_symbolic", split="train", seed=0, count=count // GROUP)
    return [
        codec.encode([system, HumanMessage(task.prompt)]) for task in tasks for _ in range(GROUP)
    ]
