"""Notice on stderr for weights in 16 bits on a CPU that computes in them more slowly than in float32.

A CPU without instructions for bfloat16 (AVX512-BF16, AMX, NEON's) converts each weight at each use.
Most models are stored in bfloat16, so they are loaded in it unless their name has `?dtype=`.
"""

from __future__ import annotations

import sys
import time
from functools import cache
from typing import Any

import torch

__all__ = ["slowness", "tell_of_slow_format"]

_WORTH_TELLING = 1.5
"""Ratio of times above which the notice is printed."""
_LARGE = 50_000_000
"""Parameters of a model that is slow in any format."""
_ROWS, _WIDTH = 32, 512
"""Shape of the product that is timed: answers in parallel, and the model's width."""
_REPEATS = 20
"""Number of timed products. The fastest one counts, since other processes delay some."""


def tell_of_slow_format(model: Any) -> None:
    """Print the notice if a model with many weights on a CPU has them in such a format."""
    if model.device.type != "cpu" or not model.dtype.is_floating_point:
        return
    if model.dtype.itemsize != 2 or model.num_parameters() < _LARGE:
        return
    if (ratio := slowness(model.dtype)) > _WORTH_TELLING:
        _tell(str(model.dtype).removeprefix("torch."), ratio)


@cache
def slowness(dtype: torch.dtype) -> float:
    """Time of a matrix product in `dtype` on this CPU, divided by its time in float32. It is measured
    once a process, in some milliseconds.
    """
    return _seconds(dtype) / _seconds(torch.float32)


def _seconds(dtype: torch.dtype) -> float:
    rows = torch.ones(_ROWS, _WIDTH, dtype=dtype)
    weight = torch.ones(_WIDTH, _WIDTH, dtype=dtype)
    found: list[float] = []
    with torch.inference_mode():
        for _ in range(_REPEATS + 1):  # the first one prepares the kernel
            began = time.perf_counter()
            torch.nn.functional.linear(rows, weight)
            found.append(time.perf_counter() - began)
    return min(found[1:])


@cache
def _tell(name: str, ratio: float) -> None:
    sys.stderr.write(
        f"hrm-agent: this CPU takes {ratio:.0f} times as long in {name}, the format of these weights,"
        " as in float32. Write ?dtype=float32 at the end of the model's name, and in a training"
        " --dtype float32. It takes twice the memory.\n"
    )
