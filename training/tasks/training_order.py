"""Order in which a training draws its tasks. The task at a position does not depend on the number
of tasks that are drawn.

So a run of 6 steps begins with the same 4 steps as a run of 4 steps, and a run can be prolonged.
Tasks are shuffled within blocks of a fixed size. When all tasks of a family have been drawn, the
next pass begins, in another order. In a mixture the next task is always of the part that is
furthest behind its share. Each part advances separately, so that a part with few tasks repeats them
sooner.
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
    """Return the first `count` tasks of a training on `spec`. A longer list begins with the shorter
    one.

    The exception are families that make different tasks for a data set of another size (Reasoning
    Gym's `acre`): their list changes when it grows by a block.

    `problems`: size of the pool through which passes are made (None: all tasks of a finite family,
    or as many as requested of an endless one). It is not allowed for a mixture.

    Raises `TaskError` as `load_tasks` does, and for a family without any task.
    """
    name, _, rest = spec.partition(":")
    if name == "mix":
        if problems:
            raise TaskError("The option problems is not allowed with a mixture.", "Leave it out.")
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
    """Index of the part for each of `count` positions. In every prefix the parts have about their
    shares by weight.
    """
    total = sum(weights)
    given = [0] * len(weights)
    order: list[int] = []
    for place in range(1, count + 1):
        behind = [place * weight / total - had for weight, had in zip(weights, given, strict=True)]
        order.append(chosen := behind.index(max(behind)))
        given[chosen] += 1
    return order
