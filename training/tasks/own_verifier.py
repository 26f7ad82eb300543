"""The verifier of each task as a rubric: what `--rewards verifier` names."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from hrm_agent.basics.bounded import BoundedMap
from hrm_agent.rewards import Reward, Rubric, Scored
from hrm_agent.training.tasks.base import Verifier
from hrm_agent.training.tasks.registry import load_tasks, verifier_of
from hrm_agent.trajectory import TaskRef

__all__ = ["RUN_VARIABLE", "VERIFIER", "VERIFIER_SPEC", "rubric"]

VERIFIER = "verifier"
"""What a person writes."""
VERIFIER_SPEC = "hrm_agent.training.tasks.own_verifier:rubric"
"""By which processes load it."""
RUN_VARIABLE = "HRM_AGENT_VERIFIED_RUN"
"""Environment variable of the processes that score: the run's folder, which says what its tasks
were read from.
"""
_known: BoundedMap[tuple[str, str, str], Verifier | None] = BoundedMap(10_000)
"""By family, id and prompt: samples of one task share theirs, which a generator may have to make
anew.
"""


_load = lru_cache(maxsize=8)(load_tasks)
"""Tasks of a user's own are drawn together, and are not drawn anew for each of them."""


async def _correct(text: str, task: TaskRef) -> Scored:
    """Async, since a verifier is quick, and a thread for each call is not."""
    key = (task.family, task.id, task.prompt)
    if key not in _known:
        run = os.environ.get(RUN_VARIABLE)
        _known[key] = verifier_of(task, Path(run) if run else None, load=_load)
    verify = _known[key]
    if verify is None:
        return Scored(
            None, f"tasks of {task.family!r} have no verifier, or can no longer be asked for it"
        )
    return Scored(verify(text))


rubric = Rubric([Reward(_correct, name="correct")], name=VERIFIER)
"""1 where the task's own verifier finds the final text right, else 0; no opinion where the task has
none.
"""
