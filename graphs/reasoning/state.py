"""What the hierarchical agent knows of a problem on its way, and what it may use: the state and the
run context.

The functions here say what follows from a state: the results in order, the best ones so far, what
is left of the budget. They read nothing else, so that a run decides the same when it is resumed or
played again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired

from langchain_core.messages import AnyMessage
from langgraph.graph.message import add_messages

# typing's has too little for LangGraph's JSON schemas before Python 3.12
from typing_extensions import TypedDict

from hrm_agent.answers.subgoals import Subgoal
from hrm_agent.answers.typed_reply import one_line
from hrm_agent.errors import ConfigError, nearest
from hrm_agent.graphs.parts.budget import (
    Prices,
    Remaining,
    Usage,
    merge_usage,
    refuse_limits,
    remaining,
)
from hrm_agent.graphs.parts.loop import ToolFormat, refuse_tool_format
from hrm_agent.graphs.reasoning.plan import FAILED
from hrm_agent.tools.session_variables import as_value

__all__ = [
    "ROLES",
    "ReasoningContext",
    "ReasoningState",
    "SolverTask",
    "best_results",
    "budget_left",
    "ordered_results",
    "problem_of",
    "shown",
    "solver_task",
    "verdict_of",
]

ROLES = ("planner", "solver", "critic", "synthesizer")
MAX_VALUE = 2000
"""Characters of a subgoal's value as other roles are shown it."""
MAX_TASK = 2**14
"""Characters of the problem as a variable."""


@dataclass(frozen=True)
class ReasoningContext:
    """What one run may use. Passed as LangGraph's run context."""

    max_rounds: int = 2
    """Plans and revisions, the first plan included."""
    max_subgoals: int = 8
    """Of one plan."""
    max_parallel: int = 8
    """Solvers side by side."""
    max_turns: int = 6
    """Answers of one solver."""
    max_answer_tokens: int = 1024
    """Sampled tokens of one solver, and of one answer of another role."""
    max_calls: int = 100
    """Answers of all roles; one of them is kept back for the synthesizer."""
    max_tokens: int = 32768
    """Sampled tokens of all roles."""
    max_seconds: float = 1800.0
    """Time in which models and tools were at work in this run, side by side counted once; checked
    between answers.
    """
    max_cost: float | None = None
    """Of all answers, in the currency of `prices`; None: no limit."""
    prices: Prices = field(default_factory=dict[str, tuple[float, float]])
    """Of a million tokens, read and sampled, by the model's name or `*`; unless its provider says
    what it took.
    """
    final_format: str = ""
    """How the answer is to be written, where the problem does not say it itself."""
    planned_format: bool = False
    """The planner is asked for the answer's format; where the problem or `final_format` has one,
    that counts.
    """
    ask_person: bool = False
    """The critic may ask: the run then waits for an answer (LangGraph's `interrupt`)."""
    models: Mapping[str, str] = field(default_factory=dict[str, str])
    """Role -> its own model, as a string; the others are the current policy."""
    temperatures: Mapping[str, float] = field(default_factory=dict[str, float])
    """Role -> its own temperature."""
    tool_format: ToolFormat = "native"
    """How solvers call the Python tool: `native`,
    or `fenced` for a model that cannot call tools.
    """
    session_variables: bool = False
    """Each solver's session begins with `task`, `results` and, where the task comes with some,
    `data`.
    """

    def __post_init__(self) -> None:
        """Raise `ConfigError` for an invalid limit or tool format, and for a role that does not
        exist.
        """
        refuse_limits(
            self, max_rounds=1, max_subgoals=1, max_parallel=1, max_turns=1, max_answer_tokens=1, max_calls=0,
            max_tokens=0, max_seconds=0.0, max_cost=0.0,
        )  # fmt: skip
        refuse_tool_format(self.tool_format)
        for name in (*self.models, *self.temperatures):
            if name not in ROLES:
                raise ConfigError(
                    f"There is no role {name!r}. {nearest(name, ROLES)}",
                    f"Roles: {', '.join(ROLES)}.",
                )


def _merged(old: dict[str, str], new: Mapping[str, str | None] | None) -> dict[str, str]:
    """Values side by side; None in the place of one takes it away, None in the place of all begins
    a new plan.
    """
    return (
        {name: value for name, value in {**old, **new}.items() if value is not None}
        if new is not None
        else {}
    )


def _listed(old: list[str], new: list[str] | None) -> list[str]:
    return [] if new is None else [*old, *new]


class ReasoningState(TypedDict):
    """One problem on its way through the roles."""

    messages: Annotated[list[AnyMessage], add_messages]
    """The problem comes in as the last human message; the final answer is appended."""
    variables: NotRequired[dict[str, Any]]
    """JSON values by name that solvers' sessions can begin with: `data`, where the task comes with
    some.
    """
    plan: NotRequired[list[Subgoal]]
    """In an order in which it can be solved."""
    answer_format: NotRequired[str]
    """How the final answer is to be written, as the planner says it."""
    results: NotRequired[Annotated[dict[str, str], _merged]]
    """Value of each solved subgoal of this plan, by name."""
    hints: NotRequired[Annotated[dict[str, str], _merged]]
    """The critic's, for subgoals that are solved again, by name."""
    best: NotRequired[dict[str, str]]
    """The fullest results that a critic has seen."""
    critique: NotRequired[str]
    """What the critic said last, as it said it."""
    verdict: NotRequired[dict[str, str]]
    """What follows from it: `action`, `subgoal`, `hint`, `check`. Empty until a plan's results are
    judged.
    """
    hint: NotRequired[str]
    """The critic's, or a person's, for the next plan."""
    rounds: NotRequired[int]
    """Plans and revisions so far."""
    spent: NotRequired[Annotated[Usage, merge_usage]]
    """By all roles."""
    remarks: NotRequired[Annotated[list[str], _listed]]
    """What could not be read or followed, and what was done instead."""
    stop_reason: NotRequired[str]
    """A `StopReason` as plain text; empty while the run goes on."""
    reason: NotRequired[str]
    """Why the run stopped, in words."""


class SolverTask(TypedDict):
    """What one solver is sent."""

    problem: str
    """The person's problem, for context."""
    subgoal: Subgoal
    """The subgoal to solve."""
    known: dict[str, str]
    """Values of the subgoals that this one needs, by name, each in one line."""
    hint: str
    """The critic's hint for this subgoal; empty at the first try."""
    tokens: int
    """This solver's budget of sampled tokens."""
    turns: int
    """This solver's budget of model calls."""
    seconds: float
    """This solver's budget of time."""
    cost: float | None
    """This solver's budget of money, in the unit of the prices; None: no limit."""
    variables: NotRequired[dict[str, Any]]
    """JSON values by name that its session begins with, where the context wants them."""


def problem_of(state: ReasoningState) -> str:
    return next(message.text for message in reversed(state["messages"]) if message.type == "human")


def verdict_of(state: ReasoningState, what: str) -> str:
    return state.get("verdict", {}).get(what, "")


def ordered_results(state: ReasoningState) -> dict[str, str]:
    """Results in the order of the plan, whichever solver finished first."""
    results = state.get("results", {})
    return {s["name"]: results.get(s["name"], FAILED) for s in state.get("plan", [])}


def _solved(results: Mapping[str, str]) -> float:
    """Share of the results that are there."""
    return sum(value != FAILED for value in results.values()) / max(len(results), 1)


def best_results(state: ReasoningState) -> dict[str, str]:
    """Those that were accepted; else those of this plan, or of an earlier one that had more of them
    solved.
    """
    results = ordered_results(state)
    if verdict_of(state, "action") == "accept" and _solved(results):
        return results
    return max(results, state.get("best", {}), key=_solved)


def shown(results: Mapping[str, str]) -> dict[str, str]:
    """Each value in one line, as far as others need to see it: one of several lines could forge its
    neighbours.
    """
    return {
        name: one_line(v, MAX_VALUE) if "\n" not in v else json.dumps(v[:MAX_VALUE])
        for name, v in results.items()
    }


def budget_left(state: ReasoningState, context: ReasoningContext) -> Remaining:
    return remaining(context, state.get("spent", Usage()))


def solver_task(
    state: ReasoningState, subgoal: Subgoal, share: Remaining, *, variables: bool = False
) -> SolverTask:
    """What a solver of `subgoal` is sent. `variables`: for its session too,
    and not as text alone.
    """
    results = state.get("results", {})
    task = SolverTask(
        problem=problem_of(state),
        subgoal=subgoal,
        known=shown({need: results[need] for need in subgoal["needs"]}),
        hint=state.get("hints", {}).get(subgoal["name"], ""),
        tokens=share.tokens,
        turns=share.calls,
        seconds=share.seconds,
        cost=share.cost,
    )
    if variables:
        task["variables"] = _session_variables(state, subgoal)
    return task


def _session_variables(state: ReasoningState, subgoal: Subgoal) -> dict[str, Any]:
    """JSON values, of which those that models have written are bounded: more than a session takes
    would end the run.
    """
    results, needs = state.get("results", {}), subgoal["needs"]
    longest = min(MAX_VALUE, MAX_TASK // max(len(needs), 1))
    return {
        "task": problem_of(state)[:MAX_TASK],
        **state.get("variables", {}),
        "results": {need: as_value(results[need][:longest]) for need in needs},
    }
