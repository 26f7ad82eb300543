"""Plan: a few named subgoals, some of which need the values of others.

A planner's list may have invalid names, duplicate names, needs that do not exist, and cycles.
`arranged` corrects the list, sorts the subgoals so that each comes after its needs, and lists the
corrections.
"""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, cast

from pydantic import BaseModel, Field, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema

from hrm_agent.answers.subgoals import Subgoal
from hrm_agent.answers.typed_reply import one_line

__all__ = [
    "FAILED",
    "PlannedSubgoal",
    "PlannerAnswer",
    "arranged",
    "ready",
    "whole_problem",
]

FAILED = "failed"
"""Value of a subgoal whose solver gave no answer."""
MAX_NAME, MAX_GOAL, MAX_FORMAT = 40, 2000, 200
"""Maximum numbers of characters of a name, a goal, and an answer format."""
_LISTS = ("subgoals", "plan", "steps", "tasks", "goals")
_GOALS = ("goal", "description", "task", "question", "subgoal")
_NEEDS = ("needs", "depends_on", "dependencies", "requires", "inputs")


# The class docstring is part of the JSON schema, which is hashed into each request: keep it.
class PlannedSubgoal(BaseModel):
    """A subgoal as the planner gives it."""

    name: str = ""
    """Name as the planner gave it (empty if it gave none)."""
    goal: str = Field(min_length=1)
    """Goal in one line."""
    needs: list[str] = Field(default_factory=list)
    """Names of the subgoals whose values this one needs. They may not exist."""

    @model_validator(mode="before")
    @classmethod
    def _by_other_names(cls, given: Any) -> Any:
        if isinstance(given, str):
            return {"goal": given}
        if not isinstance(given, Mapping):
            return given
        fields = cast("Mapping[str, Any]", given)
        goal = next(
            (goal for name in _GOALS if isinstance(goal := fields.get(name), str) and goal.strip()),
            None,
        )
        needs = next((fields[name] for name in _NEEDS if fields.get(name)), [])
        listed: list[Any] = (
            list(cast("Iterable[Any]", needs)) if isinstance(needs, (list, tuple)) else [needs]
        )
        return {
            "name": str(fields.get("name", fields.get("id", ""))),
            "goal": goal,
            "needs": [str(n) for n in listed],
        }

    @field_validator("goal")
    @classmethod
    def _in_one_line(cls, goal: str) -> str:
        """Shorten a goal to one line. In a request, further lines could imitate the parts that
        follow.
        """
        return one_line(goal, MAX_GOAL)


# The class docstring is part of the JSON schema, which is hashed into each request: keep it.
class PlannerAnswer(BaseModel):
    """What the planner answers with."""

    subgoals: list[PlannedSubgoal] = Field(min_length=1)
    """Subgoals in the planner's order, at least one."""
    answer_format: SkipJsonSchema[str] = ""
    """Format of the final answer, in one line (empty if the planner gives none).

    The field is left out of the JSON schema that constrains a plan. The schema is part of a
    request's identity, so with the field older runs could not be resumed.
    """

    @model_validator(mode="before")
    @classmethod
    def _what_can_be_used(cls, given: Any) -> Any:
        """Read the list under any of its accepted names, and leave out items that are
        not subgoals.
        """
        wanted: Any = None
        if isinstance(given, Mapping):
            fields = cast("Mapping[str, Any]", given)
            wanted = fields.get("answer_format")
            given = next(
                (fields[name] for name in _LISTS if isinstance(fields.get(name), list)), None
            )
        items = cast("list[Any]", given) if isinstance(given, list) else []
        told = one_line(wanted, MAX_FORMAT) if isinstance(wanted, str) else ""
        return {"subgoals": [item for item in items if _is_subgoal(item)], "answer_format": told}


def _is_subgoal(item: Any) -> bool:
    if isinstance(item, str):
        return bool(item.strip())
    fields = cast("Mapping[str, Any]", item) if isinstance(item, Mapping) else {}
    return any(isinstance(goal := fields.get(name), str) and bool(goal.strip()) for name in _GOALS)


def whole_problem(problem: str) -> list[Subgoal]:
    """Plan without a planner, whose only subgoal is the problem itself."""
    return [Subgoal(name="answer", goal=problem, needs=[])]


def arranged(listed: Sequence[PlannedSubgoal], limit: int) -> tuple[list[Subgoal], list[str]]:
    """Plan in which each subgoal comes after its needs, and remarks on corrections.

    If a subgoal needs an earlier one of the list, this is always kept. If it needs a later one,
    this changes the order, unless it would close a cycle; then it is dropped.
    """
    remarks = (
        [f"plan: {len(listed)} subgoals, of which the first {limit} count"]
        if len(listed) > limit
        else []
    )
    listed = listed[:limit]
    names = _names(listed)
    known: dict[str, str] = {}
    for given, name in zip(listed, names, strict=True):
        known.setdefault(given.name, name)
    known |= {name: name for name in names if name not in known}
    needs: dict[str, list[str]] = {name: [] for name in names}
    later: list[tuple[str, str]] = []
    for given, name in zip(listed, names, strict=True):
        for need in dict.fromkeys(given.needs):
            if need not in known:
                shown = need if len(need) <= MAX_NAME else need[:MAX_NAME] + "..."
                remarks.append(f"plan: {name} needs {shown!r}, which is no subgoal; dropped")
            elif names.index(known[need]) < names.index(name):
                needs[name].append(known[need])
            else:
                later.append((name, known[need]))
    for name, need in later:
        if name in _behind(need, needs):
            remarks.append(f"plan: {name} needs {need}, which needs {name}; dropped")
        else:
            needs[name].append(need)
    goals = {name: given.goal for given, name in zip(listed, names, strict=True)}
    return [
        Subgoal(name=name, goal=goals[name], needs=needs[name]) for name in _in_order(needs)
    ], remarks


def ready(plan: Iterable[Subgoal], results: Collection[str]) -> list[Subgoal]:
    """Subgoals that have no result, but whose needs all have one."""
    return [
        s for s in plan if s["name"] not in results and all(need in results for need in s["needs"])
    ]


def _names(listed: Sequence[PlannedSubgoal]) -> list[str]:
    """Unique identifiers for the subgoals, in their order."""
    names: list[str] = []
    for place, given in enumerate(listed, start=1):
        name = _identifier(given.name) or f"part_{place}"
        numbered = (f"{name}_{number}" for number in range(2, 10**6))
        names.append(next(n for n in chain([name], numbered) if n not in names))
    return names


def _identifier(given: str) -> str:
    """Valid Python identifier made of `given` (empty if no part of it can be used)."""
    name = re.sub(r"\W+", "_", unicodedata.normalize("NFKC", given[: 4 * MAX_NAME])).strip("_")[
        :MAX_NAME
    ]
    if name[:1].isdigit():
        name = f"part_{name}"
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        name += "_"
    return name if name.isidentifier() else ""


def _behind(name: str, needs: Mapping[str, Sequence[str]]) -> set[str]:
    """Names that `name` needs, directly or through others, and `name` itself."""
    found = set[str]()
    open_ = [name]
    while open_:
        one = open_.pop()
        if one not in found:
            found.add(one)
            open_ += needs[one]
    return found


def _in_order(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Names in the given order, changed so that each comes after its needs."""
    ordered: list[str] = []
    while len(ordered) < len(needs):
        ordered.append(
            next(n for n in needs if n not in ordered and all(need in ordered for need in needs[n]))
        )
    return ordered
