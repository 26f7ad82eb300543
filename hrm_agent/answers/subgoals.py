"""Subgoals of a plan, and the dependencies between them."""

from __future__ import annotations

from collections.abc import Iterable

# before Python 3.12, LangGraph cannot make JSON schemas of typing.TypedDict
from typing_extensions import TypedDict

__all__ = ["Subgoal", "dependents"]


class Subgoal(TypedDict):
    """Subgoal of a plan."""

    name: str
    """Python identifier by which later subgoals and the critic refer to the subgoal's value."""
    goal: str
    """Goal of the subgoal, in words."""
    needs: list[str]
    """Names of the subgoals whose values this subgoal needs."""


def dependents(plan: Iterable[Subgoal], name: str) -> list[str]:
    """Names of `name` and all subgoals that need its value, directly or indirectly. `plan` must be
    in order.
    """
    found = [name]
    for subgoal in plan:
        if subgoal["name"] not in found and any(need in found for need in subgoal["needs"]):
            found.append(subgoal["name"])
    return found
