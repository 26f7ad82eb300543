"""Properties by many examples: few and always the same ones by default, many and new ones with the
slow tests.
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
    """Call `check` with so many examples of what is `drawn`, however long each takes."""
    unhurried = settings(
        max_examples=examples,
        deadline=None,
        derandomize=examples == FEW,
        suppress_health_check=[HealthCheck.too_slow],
    )
    unhurried(given(**drawn)(check))()
