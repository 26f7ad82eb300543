"""The hierarchical reasoning agent: Planner, Solvers, Critic, Synthesizer.

    START -> plan -> schedule -> solve (one per ready subgoal, side by side) -> schedule -> ...
              ^         |  ^
              |         v  +------------------- revise a subgoal --+
              |      critique ------------------------------------+
              |         |  +-- ask (a person) --> plan, or schedule
              +- replan +
                        +-> synthesize -> END

The planner splits the problem into named subgoals that may need each other's values. `schedule` starts a solver for
every subgoal whose needs are met; solvers that do not need each other run side by side, each one a tool loop of its
own. The critic accepts, sends one subgoal back (which is solved again with what depends on it, and nothing else), wants
another plan, asks a person, or gives up; a check of its own may overrule its consent. The synthesizer writes the final
text in the format that was asked for.

Nothing that a model says ends the run otherwise than by a `stop_reason`. A role that cannot be understood is asked once
more; then an unreadable plan is the problem itself as one subgoal, an unreadable critique accepts, an unreadable answer
is the last result. What was put right so stands in `remarks`. All roles share one budget. Where it is used up, the run
ends with the best answer so far, and says which limit it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime
from langgraph.types import Send, interrupt
from typing_extensions import TypedDict  # typing's has too little for LangGraph's JSON schemas before Python 3.12

from graphs.answers import stated_value
from graphs.checks import Format, format_of, names_in, run_check
from graphs.critic import CriticAnswer
from graphs.planning import FAILED, PlannerAnswer, Subgoal, arranged, dependents, ready, whole_problem
from graphs.prompts import (
    CRITIC_PROMPT,
    PLANNER_PROMPT,
    SOLVER_PROMPT,
    SYNTHESIZER_PROMPT,
    critic_request,
    planner_request,
    solver_request,
    synthesizer_request,
)
from graphs.roles import Means, Role, Said, ask, one_line
from graphs.spending import Left, Prices, Spent, added, spent_on
from graphs.tool_loop import Budget, build_tool_loop
from hrm_agent.errors import ConfigError, ContextLengthError, nearest
from hrm_agent.models import was_cut
from hrm_agent.trajectory import StopReason

__all__ = ["CRITIC", "PLANNER", "SYNTHESIZER", "ReasoningContext", "ReasoningState", "SolverTask", "graph", "solver"]

NO_ANSWER = "No answer was found."
MAX_VALUE = 2000
"""Characters of a subgoal's value as other roles are shown it."""

PLANNER = Role("planner", PLANNER_PROMPT, PlannerAnswer)
CRITIC = Role("critic", CRITIC_PROMPT, CriticAnswer)
SYNTHESIZER: Role[str] = Role("synthesizer", SYNTHESIZER_PROMPT)
SOLVER = "solver"
"""The one role that is a loop: its answers call tools."""
ROLES = (PLANNER.name, SOLVER, CRITIC.name, SYNTHESIZER.name)


def _unread(text: str) -> str:
    """What a solver is told whose answer holds no value."""
    return "" if stated_value(text) else "There is no value in it. Give it as <answer>\\boxed{...}</answer>."


solver = build_tool_loop(SOLVER_PROMPT, _unread)


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
    """From the first answer's beginning to the last one's end; looked at between answers."""
    max_cost: float | None = None
    """Of all answers, in the currency of `prices`; None: no limit."""
    prices: Prices = field(default_factory=dict[str, tuple[float, float]])
    """Of a million tokens, read and sampled, by the model's name or `*`; unless its provider says what it took."""
    final_format: str = ""
    """How the answer is to be written, where the problem does not say it itself."""
    ask_person: bool = False
    """The critic may ask: the run then waits for an answer (LangGraph's `interrupt`)."""
    models: Mapping[str, str] = field(default_factory=dict[str, str])
    """Role -> its own model, as a string; the others are the policy in force."""
    temperatures: Mapping[str, float] = field(default_factory=dict[str, float])
    """Role -> its own temperature."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a role that does not exist."""
        for name in (*self.models, *self.temperatures):
            if name not in ROLES:
                raise ConfigError(f"There is no role {name!r}. {nearest(name, ROLES)}", f"Roles: {', '.join(ROLES)}.")


def _merged(old: dict[str, str], new: Mapping[str, str | None] | None) -> dict[str, str]:
    """Values side by side; None in the place of one takes it away, None in the place of all begins a new plan."""
    return {name: value for name, value in {**old, **new}.items() if value is not None} if new is not None else {}


def _listed(old: list[str], new: list[str] | None) -> list[str]:
    return [] if new is None else [*old, *new]


class ReasoningState(TypedDict):
    """One problem on its way through the roles."""

    messages: Annotated[list[AnyMessage], add_messages]
    """The problem comes in as the last human message; the final answer is appended."""
    plan: NotRequired[list[Subgoal]]
    """In an order in which it can be solved."""
    results: NotRequired[Annotated[dict[str, str], _merged]]
    """Value of each solved subgoal of this plan, by name."""
    hints: NotRequired[Annotated[dict[str, str], _merged]]
    """The critic's, for subgoals that are solved again, by name."""
    best: NotRequired[dict[str, str]]
    """The fullest results that a critic has seen."""
    critique: NotRequired[str]
    """What the critic said last, as it said it."""
    verdict: NotRequired[dict[str, str]]
    """What follows from it: `action`, `subgoal`, `hint`, `check`. Empty until a plan's results are judged."""
    hint: NotRequired[str]
    """The critic's, or a person's, for the next plan."""
    rounds: NotRequired[int]
    """Plans and revisions so far."""
    spent: NotRequired[Annotated[Spent, added]]
    """By all roles."""
    remarks: NotRequired[Annotated[list[str], _listed]]
    """What could not be read or followed, and what was done instead."""
    stop_reason: NotRequired[str]
    """A `StopReason` as plain text; empty while the run goes on."""
    reason: NotRequired[str]
    """The same in words."""


class SolverTask(TypedDict):
    """What one solver is sent."""

    problem: str
    subgoal: Subgoal
    known: dict[str, str]
    hint: str
    tokens: int
    """Its share of what is left; so the next three."""
    turns: int
    seconds: float
    cost: float | None


async def plan(state: ReasoningState, runtime: Runtime[ReasoningContext]) -> dict[str, Any]:
    """Planner: the problem -> named subgoals."""
    context, problem = _context(runtime), _problem(state)
    anew = bool(state.get("stop_reason"))  # the thread's problem before this one is done with
    state = ReasoningState(messages=state["messages"]) if anew else state
    said = await ask(PLANNER, planner_request(problem, state.get("hint", "")), _means(PLANNER, state, context))
    if said.value is not None:
        subgoals, remarks = arranged(said.value.subgoals, context.max_subgoals)
    else:
        subgoals, remarks = whole_problem(problem), [f"plan: {said.complaint}; the problem itself is the one subgoal"]
    return {
        "plan": subgoals,
        "results": None,
        "hints": None,
        "verdict": {},
        "best": state.get("best", {}),
        "rounds": state.get("rounds", 0) + 1,
        "stop_reason": "",
        "spent": _spent(said, context) | ({"anew": True} if anew else {}),
        "remarks": remarks,
    }


def schedule(state: ReasoningState) -> dict[str, Any]:
    """A join: runs once after all solvers of a step. What comes next is decided on its way out."""
    return {}


def after_schedule(state: ReasoningState, runtime: Runtime[ReasoningContext]) -> Sequence[Send] | str:
    """A solver for every subgoal whose needs are met; the critic when all are solved."""
    context = _context(runtime)
    left = _left(state, context)
    if left.used_up(calls=1):
        return "synthesize"
    waiting = ready(state.get("plan", []), state.get("results", {}))
    waiting = waiting[: min(context.max_parallel, left.calls - 1, left.tokens)]
    return [
        Send("solve", _task(state, subgoal, left.share(len(waiting), calls=1))) for subgoal in waiting
    ] or "critique"


async def solve(task: SolverTask, runtime: Runtime[ReasoningContext]) -> dict[str, Any]:
    """Solver: one subgoal -> its value, by the tool loop."""
    context, name = _context(runtime), task["subgoal"]["name"]
    request = solver_request(task["problem"], task["subgoal"]["goal"], task["known"], task["hint"])
    try:
        end = await solver.ainvoke({"messages": [HumanMessage(request)]}, context=_budget(task, context))
    except ContextLengthError as error:
        return {"results": {name: FAILED}, "remarks": [f"{name}: {error}"]}
    stop, value = end.get("stop_reason"), stated_value(end["messages"][-1].text)
    solved = stop == StopReason.ANSWER and value
    remarks = [] if solved else [f"{name}: no value ({stop})"]
    return {"results": {name: solved or FAILED}, "spent": spent_on(end["messages"], context.prices), "remarks": remarks}


async def critique(state: ReasoningState, runtime: Runtime[ReasoningContext], config: RunnableConfig) -> dict[str, Any]:
    """Critic: what is to be done with the results."""
    context, results = _context(runtime), _ordered(state)
    said = await ask(CRITIC, critic_request(_problem(state), _shown(results)), _means(CRITIC, state, context))
    verdict = (said.value or CriticAnswer(action="accept")).where(list(results), may_ask=context.ask_person)
    if verdict.action == "accept" and (wrong := await run_check(verdict.check, results, config)):
        verdict = verdict.overruled(wrong, names_in(verdict.check, list(results)))
    return {
        "critique": said.text,
        "verdict": verdict.model_dump(),
        "best": max(results, state.get("best", {}), key=_solved),
        "spent": _spent(said, context),
        "remarks": [f"critique: {said.complaint}; the results are accepted"] if said.value is None else [],
        **_consequence(verdict, state, context),
    }


def _consequence(verdict: CriticAnswer, state: ReasoningState, context: ReasoningContext) -> dict[str, Any]:
    """What a verdict changes in the state: who works on from there, and with which hint, or why nobody does."""
    rounds, wish = state.get("rounds", 0), f"{verdict.action} {verdict.subgoal}".strip()
    match verdict.action:
        case "accept":
            return {"hint": ""}
        case "give_up":
            return _stop(StopReason.GAVE_UP, f"The critic gave up: {verdict.hint}")
        case _ if rounds >= context.max_rounds:
            return _stop(StopReason.MAX_ROUNDS, f"After {rounds} rounds the critic still said {wish}: {verdict.hint}")
        case "revise":
            return _again(state, verdict.subgoal, verdict.hint)
        case "replan" | "ask":
            return {"hint": verdict.hint}


def after_critique(state: ReasoningState, runtime: Runtime[ReasoningContext]) -> str:
    """Whoever works on from the verdict, as far as the budget allows it; else the synthesizer."""
    if state.get("stop_reason") or _left(state, _context(runtime)).used_up(calls=1):
        return "synthesize"
    return {"revise": "schedule", "replan": "plan", "ask": "ask"}.get(_verdict(state, "action"), "synthesize")


def ask_person(state: ReasoningState) -> dict[str, Any]:
    """The critic's question; what the person says is the hint, for the subgoal that is in question or the next plan."""
    told = interrupt(_verdict(state, "hint"))
    hint = one_line(told if isinstance(told, str) else json.dumps(told, default=str), MAX_VALUE)
    return _again(state, subgoal, hint) if (subgoal := _verdict(state, "subgoal")) else {"hint": hint}


def after_ask(state: ReasoningState) -> str:
    """The solver of the subgoal in question, or the planner."""
    return "schedule" if _verdict(state, "subgoal") else "plan"


async def synthesize(state: ReasoningState, runtime: Runtime[ReasoningContext]) -> dict[str, Any]:
    """Synthesizer: the best results -> the final text, or as much of it as the budget allows."""
    context, problem = _context(runtime), _problem(state)
    results, left = max(_ordered(state), state.get("best", {}), key=_solved), _left(state, context)
    wanted, said = format_of(context.final_format, problem), Said[str](None)
    if not left.used_up():
        request = synthesizer_request(problem, _shown(results), context.final_format)
        means = _means(SYNTHESIZER, state, context, kept_back=0)
        said = await ask(SYNTHESIZER, request, means, read=wanted.read if wanted else None)
    message = said.messages[-1] if said.value is not None else _without_synthesizer(said, wanted, results)
    accepted = _verdict(state, "action") == "accept"
    return {
        "messages": [message],
        "spent": _spent(said, context),
        "remarks": [f"synthesize: {said.complaint}"] if said.complaint and said.value is None else [],
        **_end(state, said, left.used_up(calls=0 if accepted else 1)),
    }


def _without_synthesizer(said: Said[str], wanted: Format | None, results: Mapping[str, str]) -> AIMessage:
    """The best answer that there is without one that can be used: the part of one, or the last result."""
    own = next(filter(None, (wanted.found_in(answer.text) for answer in said.messages)), None) if wanted else None
    last = next((value for value in reversed(results.values()) if value != FAILED), NO_ANSWER)
    return AIMessage(own or (wanted.filled(last) if wanted else last))


def _end(state: ReasoningState, said: Said[str], limit: StopReason | None) -> dict[str, str]:
    if stopped := state.get("stop_reason"):
        return {"stop_reason": stopped, "reason": state.get("reason", "")}
    if limit is not None:
        return _stop(limit, f"The budget is used up ({limit.value}); this is the best answer so far.")
    if said.overflow or (said.messages and was_cut(said.messages[-1])):
        return _stop(StopReason.MAX_TOKENS, "The answer was cut off.")
    return _stop(StopReason.ANSWER, "The results were accepted.")


def _stop(stop: StopReason, reason: str) -> dict[str, str]:
    return {"hint": "", "stop_reason": stop.value, "reason": reason}


def _again(state: ReasoningState, subgoal: str, hint: str) -> dict[str, Any]:
    """Solve a subgoal again, and what depends on it; all other results stand."""
    affected = dependents(state.get("plan", []), subgoal)
    return {
        "results": dict.fromkeys(affected),
        "hints": {subgoal: hint},
        "hint": "",
        "rounds": state.get("rounds", 0) + 1,
    }


def _context(runtime: Runtime[ReasoningContext]) -> ReasoningContext:
    return runtime.context or ReasoningContext()


def _problem(state: ReasoningState) -> str:
    return next(message.text for message in reversed(state["messages"]) if message.type == "human")


def _verdict(state: ReasoningState, what: str) -> str:
    return state.get("verdict", {}).get(what, "")


def _ordered(state: ReasoningState) -> dict[str, str]:
    """Results in the order of the plan, whichever solver finished first."""
    results = state.get("results", {})
    return {s["name"]: results.get(s["name"], FAILED) for s in state.get("plan", [])}


def _solved(results: Mapping[str, str]) -> float:
    """Share of the results that are there."""
    return sum(value != FAILED for value in results.values()) / max(len(results), 1)


def _shown(results: Mapping[str, str]) -> dict[str, str]:
    """Each value in one line, as far as others need to see it: one of several lines could forge its neighbours."""
    return {name: one_line(v, MAX_VALUE) if "\n" not in v else json.dumps(v[:MAX_VALUE]) for name, v in results.items()}


def _left(state: ReasoningState, context: ReasoningContext) -> Left:
    spent = state.get("spent", Spent())
    return Left(
        context.max_calls - spent.get("calls", 0),
        context.max_tokens - spent.get("tokens", 0),
        context.max_seconds - (spent.get("ended", 0.0) - spent.get("began", 0.0)),
        None if context.max_cost is None else context.max_cost - spent.get("cost", 0.0),
    )


def _means(role: Role[Any], state: ReasoningState, context: ReasoningContext, kept_back: int = 1) -> Means:
    left = _left(state, context)
    tokens, calls = min(context.max_answer_tokens, left.tokens), min(2, left.calls - kept_back)
    return Means(context.models.get(role.name), context.temperatures.get(role.name), tokens, calls)


def _task(state: ReasoningState, subgoal: Subgoal, share: Left) -> SolverTask:
    results = state.get("results", {})
    return SolverTask(
        problem=_problem(state),
        subgoal=subgoal,
        known=_shown({need: results[need] for need in subgoal["needs"]}),
        hint=state.get("hints", {}).get(subgoal["name"], ""),
        tokens=share.tokens,
        turns=share.calls,
        seconds=share.seconds,
        cost=share.cost,
    )


def _budget(task: SolverTask, context: ReasoningContext) -> Budget:
    return Budget(
        max_turns=min(context.max_turns, task["turns"]),
        max_tokens=min(context.max_answer_tokens, task["tokens"]),
        max_seconds=task["seconds"],
        max_cost=task["cost"],
        prices=context.prices,
        model=context.models.get(SOLVER),
        temperature=context.temperatures.get(SOLVER),
    )


def _spent(said: Said[Any], context: ReasoningContext) -> Spent:
    return spent_on(said.messages, context.prices)


def _build() -> Any:
    builder = StateGraph(ReasoningState, context_schema=ReasoningContext)
    builder.add_node("plan", plan)
    builder.add_node("schedule", schedule)
    builder.add_node("solve", solve, input_schema=SolverTask)
    builder.add_node("critique", critique)
    builder.add_node("ask", ask_person)
    builder.add_node("synthesize", synthesize)
    builder.add_edge(START, "plan")
    builder.add_edge("plan", "schedule")
    builder.add_conditional_edges("schedule", after_schedule, ["solve", "critique", "synthesize"])
    builder.add_edge("solve", "schedule")
    builder.add_conditional_edges("critique", after_critique, ["plan", "schedule", "ask", "synthesize"])
    builder.add_conditional_edges("ask", after_ask, ["plan", "schedule"])
    builder.add_edge("synthesize", END)
    return builder.compile()


graph = _build()
