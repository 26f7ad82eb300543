"""The learning rate over the steps of a training.

Written here because the library's module of schedules imports its trainer, and with it PEFT and bitsandbytes, which
takes seconds and tells of kernels for quantized weights that nobody has.
"""

from __future__ import annotations

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

__all__ = ["cosine_with_warmup", "trapezoid"]


def cosine_with_warmup(optimizer: Optimizer, warmup_steps: int, steps: int) -> LambdaLR:
    """A straight line from 0 to the optimiser's own rate, then half a cosine down to 0 at the last step."""

    def share(step: int) -> float:
        if step < warmup_steps:
            return step / max(1, warmup_steps)
        done = (step - warmup_steps) / max(1, steps - warmup_steps)
        return max(0.0, 0.5 * (1.0 + math.cos(math.pi * done)))

    return LambdaLR(optimizer, share)


def trapezoid(step: int, steps: int, warmup_steps: int, cooldown_steps: int) -> float:
    """The share of the rate in a step, counted from 0: a straight line up, level, and one down towards 0 at `steps`."""
    return max(0.0, min(1.0, (step + 1) / max(1, warmup_steps), (steps - step) / (cooldown_steps + 1)))
