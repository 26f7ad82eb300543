"""Rubric that scores each run by the verifier of its task, for `--rewards verifier`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from hrm_agent.basics.bounded import BoundedMap
from hrm_agent.rewards import Reward, Rubric, Scored
from hrm_agent.training.tasks.base import Verifier
from hrm_agent.training.tasks.registry import load_tasks, run_verifier_of, verifier_of
from hrm_agent.trajectory import TaskRef, Trajectory

__all__ = [
    "RUN_VARIABLE",
    "VERIFIER",
    "VERIFIER_SPEC",
    "rubric",
    "rubric_of_runs",
    "verifier_spec",
]

VERIFIER = "verifier"
"""Name of the rubric in `--rewards`."""
VERIFIER_SPEC = "hrm_agent.training.tasks.own_verifier:rubric"
"""Import path by which processes load the rubric."""
_SPEC_OF_RUNS = "hrm_agent.training.tasks.own_verifier:rubric_of_runs"
"""Import path of the rubric that also has the verifiers of whole runs, for which calls are read."""
RUN_VARIABLE = "HRM_AGENT_VERIFIED_RUN"
"""Environment variable of scoring processes with the folder of the run, in which the sources of its
tasks are recorded.
"""
_known: BoundedMap[tuple[str, str, str], Verifier | None] = BoundedMap(10_000)
"""Verifiers by family, id and prompt. They are cached, since samples of a task share a verifier,
and a generator may have to make the task again to get it.
"""


_load = lru_cache(maxsize=8)(load_tasks)
"""Cached loader, so that a user's list is not loaded again for each of its tasks."""


async def _correct(text: str, task: TaskRef) -> Scored:
    """Score by the task's verifier. The function is async so that it gets no thread, which would
    cost more than a verifier takes.
    """
    key = (task.family, task.id, task.prompt)
    if key not in _known:
        run = os.environ.get(RUN_VARIABLE)
        _known[key] = verifier_of(task, Path(run) if run else None, load=_load)
    verify = _known[key]
    if verify is None:
        return Scored(
            None, f"tasks of {task.family!r} have no verifier, or can no longer be asked for it"
        )
    found = verify(text)
    return Scored(found["correct"] if isinstance(found, Mapping) else found)


async def _correct_run(text: str, task: TaskRef, trajectory: Trajectory) -> Scored:
    """Score by the task's verifier of whole runs, else by its verifier."""
    verify = run_verifier_of(task)
    if verify is None:
        return await _correct(text, task)
    found = verify(trajectory)
    if found is None:
        return Scored(None, "the environment of the run failed")
    return Scored(found["correct"] if isinstance(found, Mapping) else found)


def verifier_spec(tasks: Iterable[TaskRef]) -> str:
    """Import path by which processes load the rubric for these tasks."""
    whole = any(run_verifier_of(task) is not None for task in tasks)
    return _SPEC_OF_RUNS if whole else VERIFIER_SPEC


rubric = Rubric([Reward(_correct, name="correct")], name=VERIFIER)
"""Rubric whose reward is the value of the task's verifier for the final text. It has no opinion if
the task has no verifier.
"""
rubric_of_runs = Rubric([Reward(_correct_run, name="correct")], name=VERIFIER)
"""Rubric like `rubric` that also has the verifiers of whole runs. It reads the calls of each run."""
