"""Runs verifiers of libraries on a policy's text, within bounds. Some do algebra, and none was made
for hostile texts.

They run in the process of `hrm_agent.rewards.bounded_call`, on texts that have passed the guards of
`hrm_agent.training.tasks.reasoning_gym`. The trainer's own data set and the text are sent there,
and one number is returned.
"""

from __future__ import annotations

import pickle
from typing import Any

from hrm_agent.rewards.bounded_call import CallRaisedError, ExceededError, bounded_call

__all__ = ["graded", "score"]


def graded(dataset: Any, entry: dict[str, Any], answer: str) -> float:
    """Result of `dataset.score_answer(answer, entry)` within the bounds (0 if it raises or exceeds
    them).

    Raises RuntimeError if the process that runs it is lost, for which no answer is to blame.
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
    """Verdict of the library (0 if it raises any error on odd text)."""
    try:
        return float(dataset.score_answer(answer, entry))
    except Exception:
        return 0.0
