"""Counts the faults of `hrm_agent.training.small_policy.role_faults` in recorded runs of the
hierarchical graph.

Faults are found in the record alone. A plan is compared with the subgoals of the problem's
template, a verdict with the results that the critic was shown, and the final text with the form
that a verifier reads. For a solver, the tool calls and the value are checked. The table of roles
that `hrm-agent eval` prints cannot show these faults, since the right plan is not known there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from hrm_agent.answers.final_answer import final_answer
from hrm_agent.answers.typed_reply import UnparsableAnswer, read_as
from hrm_agent.langgraph_format import namespace_parts
from hrm_agent.training.tasks.verify import text_answer
from hrm_agent.training.tasks.word_problems import TEMPLATES
from hrm_agent.trajectory import Call, Trajectory

__all__ = ["FaultShare", "fault_shares"]

_SUBGOALS = {template.name: [name for name, _, _ in template.plan] for template in TEMPLATES}
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


class _Named(BaseModel):
    """Subgoal of a plan, reduced to its name."""

    name: str = ""


class _Plan(BaseModel):
    """Answer of a planner."""

    subgoals: list[_Named]


class _Verdict(BaseModel):
    """Answer of a critic."""

    action: str


@dataclass(frozen=True, slots=True)
class FaultShare:
    """Number of times that a fault was made, and number of chances to make it."""

    made: int
    """Number of times the fault was made."""
    chances: int
    """Number of times the role could have made it."""

    @property
    def share(self) -> float:
        """Share of chances in which the fault was made, in [0, 1] (0 without a chance)."""
        return self.made / self.chances if self.chances else 0.0


def fault_shares(trajectories: Iterable[Trajectory]) -> dict[str, FaultShare]:
    """Count faults in runs of word problems. Returns shares by field of `RoleFaults`."""
    made = Counter[str]()
    chances = Counter[str]()
    for trajectory in trajectories:
        subgoals = _SUBGOALS[str(trajectory.task.metadata["template"])]
        for calls in _runs(trajectory):
            for fault, is_made in _faults(calls, subgoals):
                chances[fault] += 1
                made[fault] += is_made
    return {fault: FaultShare(made[fault], chances[fault]) for fault in chances}


def _runs(trajectory: Trajectory) -> list[list[Call]]:
    """Calls of each run of a role, in their order."""
    runs: dict[str, list[Call]] = {}
    for call in trajectory.own_calls:
        task = next(
            (part.task_id for part in namespace_parts(call.identity.checkpoint_ns)),
            call.identity.task_id,
        )
        runs.setdefault(task, []).append(call)
    return list(runs.values())


def _faults(calls: Sequence[Call], subgoals: Sequence[str]) -> list[tuple[str, bool]]:
    """Faults that a run of a role could have made, each with True if the run made the fault."""
    match calls[0].identity.role:
        case "plan":
            return [("plan_cut", _is_cut(_text(calls[0]), subgoals))]
        case "solve":
            return _solver_faults(calls)
        case "critique":
            return _critic_faults(calls[0], subgoals)
        case _:
            return [("synthesize_form", text_answer(_text(calls[0])) is None)]


def _is_cut(plan: str, subgoals: Sequence[str]) -> bool:
    try:
        return subgoals[-1] not in [subgoal.name for subgoal in read_as(_Plan, plan).subgoals]
    except UnparsableAnswer:
        return True


def _solver_faults(calls: Sequence[Call]) -> list[tuple[str, bool]]:
    if _calls_tool(calls[0]):
        good = len(calls) > 1 and not _calls_tool(calls[1])
        return [("solve_guess", False), ("solve_formula", False), ("solve_bad_call", not good)]
    value = final_answer(_text(calls[0])) or ""
    guessed = _NUMBER.fullmatch(value) is not None
    return [("solve_guess", guessed), *([] if guessed else [("solve_formula", True)])]


def _critic_faults(call: Call, subgoals: Sequence[str]) -> list[tuple[str, bool]]:
    shown = str((call.request or ({},))[-1].get("content", "")).partition("\nResults:\n")[2]
    results = dict(line.split(" = ", 1) for line in shown.splitlines() if " = " in line)
    whole = subgoals[-1] in results and all(_NUMBER.fullmatch(value) for value in results.values())
    try:
        accepts = read_as(_Verdict, _text(call)).action == "accept"
    except UnparsableAnswer:
        accepts = True  # the graph, too, takes an unreadable verdict as "accept"
    return [("critique_reject", not accepts)] if whole else [("critique_accept", accepts)]


def _calls_tool(call: Call) -> bool:
    return bool(call.response.get("tool_calls") or call.response.get("invalid_tool_calls"))


def _text(call: Call) -> str:
    return str(call.response.get("content") or "")
