"""Order in which training draws its tasks. The task at a position does not depend on the number of
tasks drawn.

A run of 6 steps therefore begins with the 4 steps of a run of 4, and a run can be prolonged. Tasks
are shuffled in blocks of a fixed number, each with its own order. A family that is used up is
passed through again, each time in another order. In a mixture the next task always belongs to the
part that is furthest behind its share. Each part advances by itself: one with few tasks repeats
them sooner.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import ceil
from pathlib import Path

from hrm_agent.errors import TaskError
from hrm_agent.training.tasks.base import Task
from hrm_agent.training.tasks.mixture import read_mixture
from hrm_agent.training.tasks.reasoning_gym import load_reasoning_gym
from hrm_agent.training.tasks.registry import FAMILIES, load_tasks
from hrm_agent.trajectory import derive_seed

__all__ = ["interleaved", "training_tasks"]


def training_tasks(
    spec: str,
    *,
    seed: int,
    count: int,
    block: int,
    problems: int | None = None,
    folder: Path | None = None,
) -> list[Task]:
    """Return the first `count` tasks of the training split of `spec`. A longer list begins with the
    shorter one.

    The exception is a family that makes other tasks for another size of its data set (Reasoning
    Gym's `acre`), when the list grows by a block.

    `problems`: size of the pool that is passed through repeatedly (None: all that the family has,
    or as many as requested). Not allowed for a mixture.

    Raises `TaskError` for what `load_tasks` refuses, and for a family without any task.
    """
    name, _, rest = spec.partition(":")
    if name == "mix":
        if problems:
            raise TaskError("A mixture has no pool of one size.", "Leave `problems` out.")
        parts = read_mixture(rest, FAMILIES)
        order = interleaved([part.weight for part in parts], count)
        lists = [
            iter(
                training_tasks(
                    part.spec, seed=seed, count=order.count(index), block=block, folder=folder
                )
            )
            for index, part in enumerate(parts)
        ]
        return [next(lists[index]) for index in order]
    size = problems or ceil(count / block) * block
    if name == "reasoning_gym" and not problems:
        places = _pass(size, 0, seed, block)[:count]
        return load_reasoning_gym(rest, split="train", seed=seed, count=size, places=places)
    pool = load_tasks(spec, split="train", seed=seed, count=size, folder=folder)
    if count and not pool:
        raise TaskError(
            f"{spec!r} has no task to train on.", "Name a family, or a file, that has some."
        )
    order: list[int] = []
    while len(order) < count:
        order += _pass(len(pool), len(order) // len(pool), seed, block)
    return [pool[index] for index in order[:count]]


def _pass(size: int, number: int, seed: int, block: int) -> list[int]:
    """Order of one pass over a pool. The first pass is in blocks, since the pool may grow later."""
    if number > 0:
        return _shuffled(size, derive_seed(seed, "draw", number))
    starts = range(0, size, block)
    return [
        start + index
        for number, start in enumerate(starts)
        for index in _shuffled(min(block, size - start), derive_seed(seed, "draw", number))
    ]


def _shuffled(size: int, seed: int) -> list[int]:
    return random.Random(seed).sample(range(size), size)


def interleaved(weights: Sequence[float], count: int) -> list[int]:
    """Part for each of `count` positions, so that every prefix is shared out by weight."""
    total, given = sum(weights), [0] * len(weights)
    order: list[int] = []
    for place in range(1, count + 1):
        behind = [place * weight / total - had for weight, had in zip(weights, given, strict=True)]
        order.append(chosen := behind.index(max(behind)))
        given[chosen] += 1
    return order
