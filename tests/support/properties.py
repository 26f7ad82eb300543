"""Properties, tested by examples: by default few examples, always the same; with the slow tests
many new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

__all__ = ["few_and_many", "holds"]

FEW, MANY = 40, 250
few_and_many = pytest.mark.parametrize(
    "examples", [FEW, pytest.param(MANY, marks=pytest.mark.slow)]
)


def holds(check: Callable[..., None], examples: int, **drawn: Any) -> None:
    """Call `check` with a number of examples, drawn by the strategies `drawn`. An example may take
    any time.
    """
    unhurried = settings(
        max_examples=examples,
        deadline=None,
        derandomize=examples == FEW,
        suppress_health_check=[HealthCheck.too_slow],
    )
    unhurried(given(**drawn)(check))()
