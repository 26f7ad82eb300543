"""State and run context of the hierarchical agent.

The functions of this module derive values from a state: the results in order, the best results so
far, the remaining budget. They read only the state, so that a resumed or replayed run makes the
same decisions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired

from langchain_core.messages import AnyMessage
from langgraph.graph.message import add_messages

# before Python 3.12, LangGraph's JSON schemas need the TypedDict of typing_extensions
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
"""Maximum number of characters of a subgoal's value that are shown to other roles."""
MAX_TASK = 2**14
"""Maximum number of characters of the problem in a session variable."""


@dataclass(frozen=True)
class ReasoningContext:
    """Limits and options of one run, passed as LangGraph's run context."""

    max_rounds: int = 2
    """Maximum number of plans and revisions, including the first plan."""
    max_subgoals: int = 8
    """Maximum number of subgoals of a plan."""
    max_parallel: int = 8
    """Maximum number of parallel solvers."""
    max_turns: int = 6
    """Maximum number of answers of one solver."""
    max_answer_tokens: int = 1024
    """Maximum number of sampled tokens of one solver, and of one answer of another role."""
    max_calls: int = 100
    """Maximum number of answers of all roles. One answer is reserved for the synthesizer."""
    max_tokens: int = 32768
    """Maximum number of sampled tokens of all roles."""
    max_seconds: float = 1800.0
    """Maximum time during which models and tools of this run are running, in seconds, where
    parallel calls count once. It is checked between answers.
    """
    max_cost: float | None = None
    """Maximum cost of all answers, in the currency of `prices` (None: no limit)."""
    prices: Prices = field(default_factory=dict[str, tuple[float, float]])
    """Model name (`*` for all others) -> prices of a million prompt tokens and of a million
    completion tokens. They are used if the provider reports no cost.
    """
    final_format: str = ""
    """Format of the answer, if the problem does not state it."""
    planned_format: bool = False
    """Ask the planner for the answer's format. A format in `final_format` or in the problem takes
    precedence.
    """
    ask_person: bool = False
    """Let the critic ask a person. The run then waits for an answer (LangGraph's `interrupt`)."""
    models: Mapping[str, str] = field(default_factory=dict[str, str])
    """Role -> model string. The other roles use the current policy."""
    temperatures: Mapping[str, float] = field(default_factory=dict[str, float])
    """Role -> sampling temperature."""
    tool_format: ToolFormat = "native"
    """Form in which solvers call the Python tool: `native`, or `fenced` for a model that cannot
    call tools.
    """
    session_variables: bool = False
    """Begin each solver's session with the variables `task`, `results` and, if the task has data,
    `data`.
    """

    def __post_init__(self) -> None:
        """Raise `ConfigError` for an invalid limit or tool format, and for an unknown role."""
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
    """Merge values by name. The value None removes a name. If `new` is None, all are removed, since
    a new plan begins.
    """
    return (
        {name: value for name, value in {**old, **new}.items() if value is not None}
        if new is not None
        else {}
    )


def _listed(old: list[str], new: list[str] | None) -> list[str]:
    return [] if new is None else [*old, *new]


class ReasoningState(TypedDict):
    """State of one problem."""

    messages: Annotated[list[AnyMessage], add_messages]
    """Messages. The problem is the last human message, and the final answer is appended."""
    variables: NotRequired[dict[str, Any]]
    """JSON values by name with which solvers' sessions can begin: `data`, if the task has data."""
    plan: NotRequired[list[Subgoal]]
    """Subgoals in an order in which they can be solved."""
    answer_format: NotRequired[str]
    """Format of the final answer, as the planner gives it."""
    results: NotRequired[Annotated[dict[str, str], _merged]]
    """Name of each solved subgoal of this plan -> its value."""
    hints: NotRequired[Annotated[dict[str, str], _merged]]
    """Name of each subgoal that is solved again -> the critic's hint."""
    best: NotRequired[dict[str, str]]
    """Results of the plan that had the largest share of solved subgoals when the critic
    judged it.
    """
    critique: NotRequired[str]
    """Critic's last answer, as sampled."""
    verdict: NotRequired[dict[str, str]]
    """Verdict on the current results: `action`, `subgoal`, `hint`, `check` (empty until they are
    judged).
    """
    hint: NotRequired[str]
    """Hint for the next plan, from the critic or a person."""
    rounds: NotRequired[int]
    """Plans and revisions so far."""
    spent: NotRequired[Annotated[Usage, merge_usage]]
    """Usage of all roles."""
    remarks: NotRequired[Annotated[list[str], _listed]]
    """Remarks on answers that could not be parsed or followed, and on how they were repaired."""
    stop_reason: NotRequired[str]
    """`StopReason` as plain text (empty while the run continues)."""
    reason: NotRequired[str]
    """Reason for the stop, as text for a person."""


class SolverTask(TypedDict):
    """Input of one solver."""

    problem: str
    """Whole problem, for context."""
    subgoal: Subgoal
    """Subgoal to solve."""
    known: dict[str, str]
    """Name of each subgoal that this one needs -> its value, in one line."""
    hint: str
    """Critic's hint for this subgoal (empty at the first try)."""
    tokens: int
    """Budget of sampled tokens."""
    turns: int
    """Budget of model calls."""
    seconds: float
    """Budget of time, in seconds."""
    cost: float | None
    """Budget of money, in the currency of the prices (None: no limit)."""
    variables: NotRequired[dict[str, Any]]
    """JSON values by name with which the session begins, if the context enables this."""


def problem_of(state: ReasoningState) -> str:
    return next(message.text for message in reversed(state["messages"]) if message.type == "human")


def verdict_of(state: ReasoningState, what: str) -> str:
    return state.get("verdict", {}).get(what, "")


def ordered_results(state: ReasoningState) -> dict[str, str]:
    """Results in the order of the plan, regardless of the order in which solvers finished."""
    results = state.get("results", {})
    return {s["name"]: results.get(s["name"], FAILED) for s in state.get("plan", [])}


def _solved(results: Mapping[str, str]) -> float:
    """Share of the subgoals that have a value."""
    return sum(value != FAILED for value in results.values()) / max(len(results), 1)


def best_results(state: ReasoningState) -> dict[str, str]:
    """Results, if the critic accepted them. If not, the results of this plan or of an earlier one,
    whichever has the larger share of solved subgoals.
    """
    results = ordered_results(state)
    if verdict_of(state, "action") == "accept" and _solved(results):
        return results
    return max(results, state.get("best", {}), key=_solved)


def shown(results: Mapping[str, str]) -> dict[str, str]:
    """Values, each shortened to one line, since further lines of a value could imitate other
    values.
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
    """Input of a solver of `subgoal`. `variables`: True if values are also passed as variables of
    the solver's session.
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
        needs = subgoal["needs"]
        # Values come from models, so their size is bounded: a value that is too large for a session
        # would end the run.
        longest = min(MAX_VALUE, MAX_TASK // max(len(needs), 1))
        task["variables"] = {
            "task": problem_of(state)[:MAX_TASK],
            **state.get("variables", {}),
            "results": {need: as_value(results[need][:longest]) for need in needs},
        }
    return task
