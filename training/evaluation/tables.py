"""Values of an evaluation as text: means with their intervals, numbers in one line."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hrm_agent.basics.intervals import Estimate

__all__ = ["NOT_REPORTED", "Row", "interval_text", "plain_text"]

NOT_REPORTED = "not reported"
"""Of a hosted model whose provider gives no counts, as hrm_agent.trajectory.words says of a single
run.
"""

Row = Sequence[object]


def plain_text(value: object) -> str:
    """A value in one line; what is not finite is none."""
    if isinstance(value, float):
        return f"{value:.3f}" if math.isfinite(value) else "none"
    return " ".join(str(value).split())


def interval_text(found: Estimate, *, sign: bool = False) -> str:
    """A mean with its interval."""
    form = "+.3f" if sign else ".3f"
    return f"{found.value:{form}}  (95 % interval {found.low:{form}} to {found.high:{form}})"
