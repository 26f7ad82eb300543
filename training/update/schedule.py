"""Learning rate and dropout noise of a training step, both determined by the step's number.

The schedules of transformers are not used, because their module imports its trainer, PEFT and
bitsandbytes, which takes seconds and prints messages about kernels for quantized weights.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch

from hrm_agent.errors import RunError

__all__ = ["Fall", "Schedule", "dropout_seed", "refuse_other_course", "trapezoid"]

Fall = Literal["linear", "cosine"]
"""Shapes of the decay of a learning rate."""


def trapezoid(
    step: int,
    steps: int,
    warmup_steps: int,
    cooldown: float,
    fall: Fall = "linear",
    least: float = 0.0,
) -> float:
    """Share of the full rate in `step` (counted from 0): a linear rise, a plateau, and a decay
    towards `least` at `steps`.

    `cooldown` is the share of all steps, at the end, in which the rate decays. The rate is never 0.
    A warm-up longer than the training is shortened to it.
    """
    warmup = max(1, min(warmup_steps, steps))
    left = (steps - step) / (round(cooldown * steps) + 1)
    if fall == "cosine" and left < 1:
        left = (1 - math.cos(math.pi * left)) / 2
    if least:
        left = least + (1 - least) * left
    return max(0.0, min(1.0, (step + 1) / warmup, left))


@dataclass(frozen=True, slots=True)
class Schedule:
    """Learning rate over the steps of a training."""

    steps: int
    """Number of steps."""
    warmup_steps: int
    """Number of steps at the beginning in which the rate rises (0 for none)."""
    cooldown: float
    """Share of all steps, at the end, in which the rate decays."""
    fall: Fall = "linear"
    """Shape of the decay."""
    least: float = 0.0
    """Minimum share of the full rate."""

    def share(self, step: int) -> float:
        """Share of the full rate in a step, counted from 0."""
        return trapezoid(step, self.steps, self.warmup_steps, self.cooldown, self.fall, self.least)


def refuse_other_course(now: Schedule, steps_before: int, taken: int, folder: object) -> None:
    """Raise `RunError` if a run planned for `steps_before` steps cannot be changed to `now.steps`.

    It can be changed if the new schedule gives the `taken` steps the rates that they had. The run
    then equals a run planned for `now.steps`. Rates depend on the planned number of steps only in
    the cool-down, and in a warm-up longer than the run.
    """
    if now.steps < taken:
        raise RunError(
            f"The run in {folder} has taken {taken} steps: it cannot end after {now.steps}.",
            f"Ask for --steps {taken} or more, or name another folder with --out.",
        )
    before = replace(now, steps=steps_before)
    other = next((step for step in range(taken) if before.share(step) != now.share(step)), None)
    if other is not None:
        raise RunError(
            f"The run in {folder} cannot be changed from {steps_before} to {now.steps} steps: the"
            f" learning rate of step {other}, which it has taken, was {before.share(other):.3g} of"
            f" the full rate and would now be {now.share(other):.3g}.",
            "Start a new run from the weights of this one (--policy, another --out). To be able to"
            " prolong a run, start it with --cooldown 0 and no more --warmup-steps than steps.",
        )


@contextmanager
def dropout_seed(seed: int) -> Generator[None]:
    """Seed torch's random numbers with `seed` within the block, so that a repeated step drops the
    same units.
    """
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield
