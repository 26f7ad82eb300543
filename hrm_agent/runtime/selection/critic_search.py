"""Choice of the checkpoint to retry a rejected run from: the one before the step that the critic
blames.

A graph supports search if its state has a `verdict`, a dict (or pydantic model) of `action`,
`subgoal` and `hint`:

* `accept` ends the search;
* `revise` blames a subgoal. It and its dependents are solved again, from the moment before it was
  (last) solved. All other results of the run, of the same step and of later ones, are pinned there,
  so that nothing else is solved again. A graph without `plan` and `results` names one of its nodes
  as the subgoal;
* `replan` blames the plan: the node `plan` runs again;
* anything else (it gave up, or cannot be parsed) closes the run.

The critic's hint goes into the channel `hints`, under the subgoal's name, or into `hint`, if the
state has them. A fork inherits its run's usage (`hrm_agent.graphs.parts.budget`), but its time
counts from the fork on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

from pydantic import BaseModel

from hrm_agent.answers.subgoals import Subgoal, dependents
from hrm_agent.errors import ConfigError
from hrm_agent.runtime.execution.loading import load_graph
from hrm_agent.runtime.time_travel.history import History, Moment

__all__ = ["RetryPoint", "accepted", "find_retry_point", "require_verdict"]

_PLAN = "plan"
"""Name of the node and of the channel of a plan."""


@dataclass(frozen=True, slots=True)
class RetryPoint:
    """Point to fork a run from, and the changes there."""

    moment: Moment
    """Last moment before the blamed step."""
    values: Mapping[str, Any]
    """Channel -> new value: pinned results, the hint, and the usage without its time."""
    again: int
    """Number of subgoals that are solved again; for a new plan all of them and one more."""


def require_verdict(name: str) -> None:
    """Raise `ConfigError` if the state of a graph has no `verdict`."""
    if "verdict" not in load_graph(name).channels:
        raise ConfigError(
            f"The mode 'search' needs the verdict of a critic, but the state of graph {name!r} has"
            " no `verdict`.",
            "Use --mode best-of-n or majority, or add `verdict: dict` to the state, with action,"
            " subgoal and hint.",
        )


def accepted(found: History) -> bool | None:
    """True if the critic's last verdict is `accept` (None if the state has no verdict)."""
    verdict = _verdict(found)
    return verdict.get("action") == "accept" if verdict else None


def find_retry_point(found: History) -> RetryPoint | None:
    """Point to retry an ended run from, by its critic's verdict (None if the run is closed)."""
    verdict = _verdict(found)
    subgoal = str(verdict.get("subgoal") or "")
    hint = str(verdict.get("hint") or "")
    match verdict.get("action"):
        case "revise":
            return _before_subgoal(found, subgoal, hint) or _before_node(found, subgoal, hint)
        case "replan":
            return _before_node(found, _PLAN, hint)
        case _:
            return None


def _verdict(found: History) -> Mapping[str, Any]:
    verdict: Any = found.last.values.get("verdict")
    if isinstance(verdict, BaseModel):
        return verdict.model_dump()
    return cast("Mapping[str, Any]", verdict) if isinstance(verdict, Mapping) else {}


def _before_subgoal(found: History, subgoal: str, hint: str) -> RetryPoint | None:
    """Retry point before the last step that solved the subgoal (None if no step did)."""
    line = found.lineage()
    places = [
        m for m, then in pairwise(line) if subgoal not in _results(m) and subgoal in _results(then)
    ]
    if not places:
        return None
    moment = places[-1]
    affected = dependents(_plan(moment), subgoal)
    kept = {**_results(moment), **_results(found.last)}
    values = {"results": {name: value for name, value in kept.items() if name not in affected}}
    return RetryPoint(moment, values | _changes(found, moment, subgoal, hint), len(affected))


def _before_node(found: History, node: str, hint: str) -> RetryPoint | None:
    """Retry point before the last step that ran a node (None if no step did)."""
    places = [moment for moment in found.lineage()[:-1] if node in moment.next]
    if not places:
        return None
    subgoals = max(len(_plan(places[-1])), len(_plan(found.last)))
    return RetryPoint(places[-1], _changes(found, places[-1], node, hint), subgoals + 1)


def _plan(moment: Moment) -> list[Subgoal]:
    """Subgoals of the plan; empty if the state has none."""
    listed: Any = moment.values.get(_PLAN)
    items = cast("list[Any]", listed) if isinstance(listed, list) else []
    named = [
        cast("Mapping[str, Any]", item)
        for item in items
        if isinstance(item, Mapping) and "name" in item
    ]
    return [
        Subgoal(name=s["name"], goal=str(s.get("goal", "")), needs=list(s.get("needs") or ()))
        for s in named
    ]


def _results(moment: Moment) -> Mapping[str, Any]:
    results = moment.values.get("results")
    return cast("Mapping[str, Any]", results) if isinstance(results, Mapping) else {}


def _changes(found: History, moment: Moment, name: str, hint: str) -> dict[str, Any]:
    """Changes at the fork: the critic's hint, added to earlier hints, and a time budget that starts
    again.
    """
    known = load_graph(found.trajectory.graph).channels if found.trajectory else {}
    spent: Any = moment.values.get("spent")
    changes: dict[str, Any] = (
        {"spent": {name: value for name, value in spent.items() if name not in _TIMES}}
        if isinstance(spent, Mapping) and spent
        else {}
    )
    if hint and "hints" in known and name != _PLAN:
        return changes | {"hints": {**(moment.values.get("hints") or {}), name: hint}}
    return changes | ({"hint": hint} if hint and "hint" in known else {})


_TIMES = ("thread", "spans", "seconds", "began", "ended")
"""Keys of a graph's usage that hold times, those of earlier versions included."""
