"""The learning rate over the steps of a training.

Written here because the library's module of schedules imports its trainer, and with it PEFT and bitsandbytes, which
takes seconds and tells of kernels for quantized weights that nobody has.
"""

from __future__ import annotations

__all__ = ["trapezoid"]


def trapezoid(step: int, steps: int, warmup_steps: int, cooldown: float) -> float:
    """The share of the rate in a step, counted from 0: a straight line up, level, and one down towards 0 at `steps`.

    `cooldown` is the share of the steps, the last ones, in which it falls.
    """
    return max(0.0, min(1.0, (step + 1) / max(1, warmup_steps), (steps - step) / (round(cooldown * steps) + 1)))
