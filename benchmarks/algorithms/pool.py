"""Pool of `learnability`: tasks of three families under one name, so that they are drawn as one
family. Between the families of a `mix:` nothing is chosen, since its shares hold.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.algorithms.lessons import FAMILIES
from hrm_agent.training.tasks import Task, load_tasks

__all__ = ["tasks"]


def tasks(split: str, seed: int, count: int) -> list[Task]:
    """Tasks of the families in equal shares, in random order."""
    mixture = f"mix:{','.join(f'1*{family}' for family in FAMILIES)}"
    found = load_tasks(mixture, split=split, seed=seed, count=count)
    return [
        replace(task, id=f"{task.family}/{task.id}", metadata={**task.metadata, "of": task.family})
        for task in found
    ]
