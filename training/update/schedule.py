"""What a step of a training is given by its number: the learning rate, and the noise of dropout.

Written here because the library's module of schedules imports its trainer, and with it PEFT and
bitsandbytes, which takes seconds and tells of kernels for quantized weights that nobody has.
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
"""Lines along which a learning rate falls."""


def trapezoid(
    step: int,
    steps: int,
    warmup_steps: int,
    cooldown: float,
    fall: Fall = "linear",
    least: float = 0.0,
) -> float:
    """The share of the rate in a step, counted from 0: a line up, level, and a fall towards `least`
    at `steps`.

    `cooldown` is the share of the steps, the last ones, in which it falls. No share is 0, and a
    warm-up longer than the training takes as long as the training.
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
    """The learning rate over the steps of a training."""

    steps: int
    """How many there are."""
    warmup_steps: int
    """First steps, in which the rate rises; 0: none."""
    cooldown: float
    """Share of the steps, the last ones, in which it falls."""
    fall: Fall = "linear"
    """The line along which it falls."""
    least: float = 0.0
    """Share of the full rate that it does not fall below."""

    def share(self, step: int) -> float:
        """The share of the full rate in a step, counted from 0."""
        return trapezoid(step, self.steps, self.warmup_steps, self.cooldown, self.fall, self.least)


def refuse_other_course(now: Schedule, steps_before: int, taken: int, folder: object) -> None:
    """Raise `RunError` where a run that was to take `steps_before` steps cannot take `now.steps`
    instead.

    It can if the `taken` ones were taken at the rates that they have now: then it is the run that
    `now.steps` in one go would have been. The rates depend on the number of steps in the cool-down,
    and in a warm-up longer than the run.
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
            f"The run in {folder} cannot be taken from {steps_before} to {now.steps} steps: the"
            f" learning rate of step {other}, which it has taken, was {before.share(other):.3g} of"
            f" the full rate and would be {now.share(other):.3g}.",
            "Start a new run from the weights of this one (--policy, another --out). A run that is"
            " to be prolonged takes --cooldown 0, and no more --warmup-steps than steps, from its"
            " beginning.",
        )


@contextmanager
def dropout_seed(seed: int) -> Generator[None]:
    """Within the block torch draws from `seed`: a step that is taken again drops the same units."""
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield
