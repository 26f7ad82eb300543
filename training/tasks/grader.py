"""Verifiers of libraries on a policy's text, within bounds: some do algebra, and none was made for
hostile texts.

They run where `hrm_agent.rewards.bounded_call` has its process, on texts that have passed the
guards of `hrm_agent.training.tasks.reasoning_gym`. What is sent there is the trainer's own data set
and the text; what comes back is one number.
"""

from __future__ import annotations

import pickle
from typing import Any

from hrm_agent.rewards.bounded_call import CallRaisedError, ExceededError, bounded_call

__all__ = ["graded", "score"]


def graded(dataset: Any, entry: dict[str, Any], answer: str) -> float:
    """`dataset.score_answer(answer, entry)` within the bounds; 0 where it raises or exceeds them.

    Raises RuntimeError where the process that bounds it was lost: no answer is to blame for that.
    """
    try:
        pickle.dumps((dataset, entry))
    # a data set that holds a lambda cannot be sent
    except (AttributeError, TypeError, pickle.PicklingError):
        return score(dataset, entry, answer)
    try:
        found = bounded_call(
            "hrm_agent.training.tasks.grader:score",
            dataset,
            entry,
            answer,
            imports=["reasoning_gym"],
        )
    except (CallRaisedError, ExceededError):
        return 0.0
    return float(found)


def score(dataset: Any, entry: dict[str, Any], answer: str) -> float:
    """The verdict of the library; 0 where it raises on odd text, whatever the type."""
    try:
        return float(dataset.score_answer(answer, entry))
    except Exception:
        return 0.0
