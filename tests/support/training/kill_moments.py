"""Moments at which trainings are killed. Some are tested by default, the others in the slow
tests.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

__all__ = ["asked_for", "moments"]


def moments(kills: Collection[str], *quick: str) -> list[Any]:
    """Parameters of a test: all names of kills, those that are not `quick` marked as slow."""
    assert set(quick) <= set(kills)
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in kills]


def asked_for(
    kills: Mapping[str, tuple[str, int]], request: pytest.FixtureRequest
) -> dict[str, tuple[str, int]]:
    """Kills that the selected tests of the fixture's module name. Runs of other kills are not
    needed.
    """
    here = [
        item
        for item in request.session.items
        if item.path == request.path and isinstance(item, pytest.Function)
    ]
    names = {item.callspec.params.get("name") for item in here if hasattr(item, "callspec")}
    return {name: kill for name, kill in kills.items() if name in names}
