"""Your own rewards: rubrics of named functions, answer readers, comparisons, code tests, and
judges.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hrm_agent.rewards.by_call import judged_by, readable, tool_outcomes
    from hrm_agent.rewards.code_tests import passes_tests
    from hrm_agent.rewards.comparison import answer_is, comparison_of
    from hrm_agent.rewards.judge import judged, ranked
    from hrm_agent.rewards.loading import load_rubric
    from hrm_agent.rewards.readers import reader_of
    from hrm_agent.rewards.rollout import Rollout
    from hrm_agent.rewards.rubric import Reward, Rubric, Scored
    from hrm_agent.rewards.scoring import Scorer, opened_scorer

__all__ = [
    "Reward",
    "Rollout",
    "Rubric",
    "Scored",
    "Scorer",
    "answer_is",
    "comparison_of",
    "judged",
    "judged_by",
    "load_rubric",
    "opened_scorer",
    "passes_tests",
    "ranked",
    "readable",
    "reader_of",
    "tool_outcomes",
]

_HOMES = {
    "Reward": "rubric",
    "Rollout": "rollout",
    "Rubric": "rubric",
    "Scored": "rubric",
    "Scorer": "scoring",
    "answer_is": "comparison",
    "comparison_of": "comparison",
    "judged": "judge",
    "judged_by": "by_call",
    "load_rubric": "loading",
    "opened_scorer": "scoring",
    "passes_tests": "code_tests",
    "ranked": "judge",
    "readable": "by_call",
    "reader_of": "readers",
    "tool_outcomes": "by_call",
}


def __getattr__(name: str) -> Any:
    """Load attributes on demand: judges need LangChain, code tests the environment."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
