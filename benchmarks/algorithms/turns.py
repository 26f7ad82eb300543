"""Rubric of the four roles: the task's verifier, with rewards of single calls for failed tool calls
and for answers that cannot be read.
"""

from __future__ import annotations

from hrm_agent.graphs.reasoning.critique import CriticAnswer
from hrm_agent.graphs.reasoning.plan import PlannerAnswer
from hrm_agent.rewards import Reward, Rubric, readable, tool_outcomes
from hrm_agent.training.tasks import own_verifier

__all__ = ["rubric"]

rubric = Rubric(
    [
        *own_verifier.rubric.rewards,
        Reward(tool_outcomes),
        Reward(readable({"plan": PlannerAnswer, "critique": CriticAnswer})),
    ]
)
