"""Mixture of task families: `mix:2*word_problems,1*reasoning_gym:gcd`.

A part is a weight (by default 1) and a spec. A comma begins a new part only if a weight or the name
of a family follows it, so that the parameters of a part may contain commas. So a part that is a
user's module needs a weight. `count` tasks are divided among the parts by weight; remainders go to
the parts with the largest fractions. If a part has fewer tasks than its share, other parts do not
fill the gap, since that would silently change the mixture. Tasks keep the family of their part.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hrm_agent.errors import TaskError
from hrm_agent.training.tasks.base import Task
from hrm_agent.trajectory import derive_seed

__all__ = ["MixturePart", "mixed", "read_mixture", "shares"]

MAX_WEIGHT = 1e9


@dataclass(frozen=True, slots=True)
class MixturePart:
    """Part of a mixture."""

    weight: float
    """Weight of the part. Its share of the tasks is this weight over the sum of all weights."""
    spec: str
    """Family with its parameters, as given to `--tasks`."""


def read_mixture(text: str, families: Iterable[str]) -> list[MixturePart]:
    """Parse `WEIGHT*SPEC,WEIGHT*SPEC` into parts. Raises `TaskError` for a malformed text."""
    names = "|".join(sorted(families))
    pieces = re.split(rf",\s*(?=[0-9.]+\*|(?:{names})(?:[:,]|$))", text)
    parts: list[MixturePart] = []
    for piece in pieces:
        match = re.fullmatch(r"(?:([0-9]*\.?[0-9]+)\*)?([\w./~].*)", piece.strip())
        weight = float(match[1] or 1) if match else 0.0
        if match is None or not 0 < weight <= MAX_WEIGHT:
            raise TaskError(
                f"mix: {piece.strip()!r} is not a part of a mixture.",
                "Write mix:2*word_problems,1*reasoning_gym:gcd",
            )
        if match[2].partition(":")[0] == "mix":
            raise TaskError("mix: has a mixture in it.", "Write all parts side by side.")
        parts.append(MixturePart(weight, match[2]))
    for index, part in enumerate(parts):
        if part.spec in {earlier.spec for earlier in parts[:index]}:
            raise TaskError(
                f"mix: names {part.spec!r} twice.", "Give it once, with the sum of the weights."
            )
    return parts


def mixed(
    parts: Sequence[MixturePart],
    load: Callable[[MixturePart, int], list[Task]],
    *,
    seed: int,
    split: str,
    count: int | None,
) -> list[Task]:
    """Return `count` tasks of `parts` in an order drawn from the seed. `load`: function that loads
    a number of tasks of one part.
    """
    if count is None:
        raise TaskError(
            "The parts of a mixture are shares of a number of tasks, and no number was given.",
            "Say how many tasks are wanted.",
        )
    wanted = shares([part.weight for part in parts], count)
    tasks = [
        task for part, number in zip(parts, wanted, strict=True) for task in load(part, number)
    ]
    random.Random(derive_seed(seed, "mix", split)).shuffle(tasks)
    return tasks


def shares(weights: Sequence[float], count: int) -> list[int]:
    """Divide `count` by weight into whole numbers. The shares with the largest fractions are
    rounded up, so that the sum is `count`.
    """
    exact = [count * weight / math.fsum(weights) for weight in weights]
    whole = [math.floor(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (whole[i] - exact[i], i))
    for i in by_remainder[: count - sum(whole)]:
        whole[i] += 1
    return whole
