"""Evaluation values as text: means with intervals, and single values."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hrm_agent.basics.intervals import Estimate

__all__ = ["NOT_REPORTED", "Row", "interval_text", "plain_text"]

NOT_REPORTED = "not reported"
"""Text for counts that a hosted model's provider does not report."""

Row = Sequence[object]


def plain_text(value: object) -> str:
    """Format a value in one line. A number that is not finite becomes "none"."""
    if isinstance(value, float):
        return f"{value:.3f}" if math.isfinite(value) else "none"
    return " ".join(str(value).split())


def interval_text(found: Estimate, *, sign: bool = False) -> str:
    """Format a mean with its interval."""
    form = "+.3f" if sign else ".3f"
    return f"{found.value:{form}}  (95 % interval {found.low:{form}} to {found.high:{form}})"
