"""The parts of a plan, and which of them hang on which."""

from __future__ import annotations

from collections.abc import Iterable

# typing's has too little for LangGraph's JSON schemas before Python 3.12
from typing_extensions import TypedDict

__all__ = ["Subgoal", "dependents"]


class Subgoal(TypedDict):
    """One part of a plan."""

    name: str
    """A Python identifier; later subgoals and the critic know the value by it."""
    goal: str
    """What is to be found, in words."""
    needs: list[str]
    """Names of subgoals whose values this one needs."""


def dependents(plan: Iterable[Subgoal], name: str) -> list[str]:
    """`name` and all subgoals that need its value, directly or through others;
    `plan` is in order.
    """
    found = [name]
    for subgoal in plan:
        if subgoal["name"] not in found and any(need in found for need in subgoal["needs"]):
            found.append(subgoal["name"])
    return found
