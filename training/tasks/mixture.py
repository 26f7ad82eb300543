"""Mixture of task families: `mix:2*word_problems,1*reasoning_gym:gcd`.

A part is a spec with its weight before it (by default 1). A comma begins a new part if a weight or
the name of a family follows it, so that the parameters of a part may contain commas. A user's
module needs its weight. `count` tasks are shared out by weight, the largest remainders first. A
part with fewer tasks gives what it has. The others do not fill its place, which would silently
change the mixture. The tasks keep the family of their part.
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
    """Family of a mixture."""

    weight: float
    """Weight of the part. Its share of the tasks is the weight over the sum of all weights."""
    spec: str
    """Family with its parameters, as given to `--tasks`."""


def read_mixture(text: str, families: Iterable[str]) -> list[MixturePart]:
    """Parts of `WEIGHT*SPEC,WEIGHT*SPEC`. Raises `TaskError`."""
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
    """Return `count` tasks of `parts` in an order drawn from the seed. `load` loads a number of
    tasks of one part.
    """
    if count is None:
        raise TaskError(
            "A mixture is shared out by weight: it needs a number of tasks.",
            "Say how many are wanted.",
        )
    wanted = shares([part.weight for part in parts], count)
    tasks = [
        task for part, number in zip(parts, wanted, strict=True) for task in load(part, number)
    ]
    random.Random(derive_seed(seed, "mix", split)).shuffle(tasks)
    return tasks


def shares(weights: Sequence[float], count: int) -> list[int]:
    """Shares of `count` by weight, the largest remainders rounded up. They sum to `count`."""
    exact = [count * weight / math.fsum(weights) for weight in weights]
    whole = [math.floor(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (whole[i] - exact[i], i))
    for i in by_remainder[: count - sum(whole)]:
        whole[i] += 1
    return whole
