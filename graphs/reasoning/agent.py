"""Hierarchical reasoning agent: Planner, Solvers, Critic, Synthesizer.

    START -> plan -> schedule -> solve (one per ready subgoal, side by side) -> schedule -> ...
              ^         |  ^
              |         v  +------------------- revise a subgoal --+
              |      critique ------------------------------------+
              |         |  +-- ask (a person) --> plan, or schedule
              +- replan +
                        +-> synthesize -> END

The planner splits the problem into named subgoals, which may need each other's values. `schedule`
starts a solver for every subgoal whose needs are met. Solvers run in parallel, each in a separate
tool loop. The critic accepts the results, sends one subgoal back (only this subgoal and its
dependents are solved again), requests another plan, asks a person, or gives up. With its verdict
the critic may write a check, which overrules its acceptance if the check fails. The synthesizer
writes the final text in the requested format.

No model output raises an error: every run ends with a `stop_reason`. If the answer of a role cannot
be parsed, the role is asked once more. If the second answer cannot be parsed either, the problem
itself becomes the only subgoal of the plan, the critic counts as accepting, or the last result
becomes the final text. `remarks` lists such repairs. All roles share one budget. When it is used
up, the run ends with the best answer so far, and reports which limit was reached.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Send, interrupt

from hrm_agent.answers.final_answer import stated_value
from hrm_agent.answers.subgoals import dependents
from hrm_agent.answers.typed_reply import one_line
from hrm_agent.graphs.parts.budget import Usage, reset_usage, spent_on
from hrm_agent.graphs.parts.loop import run_loop
from hrm_agent.graphs.parts.prompts import (
    CRITIC_PROMPT,
    PLANNER_FORMAT_PROMPT,
    PLANNER_PROMPT,
    SOLVER_PROMPT,
    SYNTHESIZER_PROMPT,
    critic_request,
    planner_request,
    solver_request,
    synthesizer_request,
)
from hrm_agent.graphs.parts.roles import CallOptions, Role, RoleReply, ask_role
from hrm_agent.graphs.reasoning.answer_checks import format_of, names_in, run_check
from hrm_agent.graphs.reasoning.critique import CriticAnswer
from hrm_agent.graphs.reasoning.plan import FAILED, PlannerAnswer, arranged, ready, whole_problem
from hrm_agent.graphs.reasoning.state import (
    ReasoningContext,
    ReasoningState,
    SolverTask,
    best_results,
    budget_left,
    ordered_results,
    problem_of,
    shown,
    solver_task,
    verdict_of,
)
from hrm_agent.graphs.tool_loop import Budget, build_tool_loop
from hrm_agent.models import was_cut
from hrm_agent.trajectory import StopReason

__all__ = [
    "CRITIC",
    "PLANNER",
    "SYNTHESIZER",
    "ReasoningContext",
    "ReasoningState",
    "SolverTask",
    "graph",
    "solver",
]

NO_ANSWER = "No answer was found."
MAX_TOLD = 2000
"""Maximum number of characters of a person's answer that are used."""
PLANNER = Role("planner", PLANNER_PROMPT, PlannerAnswer)
FORMAT_PLANNER = Role("planner", PLANNER_FORMAT_PROMPT, PlannerAnswer)
CRITIC = Role("critic", CRITIC_PROMPT, CriticAnswer)
SYNTHESIZER: Role[str] = Role("synthesizer", SYNTHESIZER_PROMPT)
SOLVER = "solver"
"""Name of the role whose answers call tools, so that it is a loop."""


def _unread(text: str) -> str:
    """Complaint about a solver's answer without a value (empty if it has a value)."""
    return (
        ""
        if stated_value(text)
        else "There is no value in it. Give it as <answer>\\boxed{...}</answer>."
    )


solver = build_tool_loop(SOLVER_PROMPT, _unread)


async def plan(state: ReasoningState, runtime: Runtime[ReasoningContext]) -> dict[str, Any]:
    """Planner: the problem -> named subgoals."""
    context = _context(runtime)
    problem = problem_of(state)
    new_problem = bool(state.get("stop_reason"))  # an earlier problem on this thread has ended
    earlier_format = state.get("answer_format", "")
    state = ReasoningState(messages=state["messages"]) if new_problem else state
    role = FORMAT_PLANNER if context.planned_format else PLANNER
    said = await ask_role(
        role, planner_request(problem, state.get("hint", "")), _options(role, state, context)
    )
    planned_format = said.value.answer_format if said.value is not None else ""
    if said.value is not None:
        subgoals, remarks = arranged(said.value.subgoals, context.max_subgoals)
    else:
        subgoals = whole_problem(problem)
        remarks = [f"plan: {said.complaint}; the problem itself is the one subgoal"]
    spent = _spent(said, context)
    return {
        "plan": subgoals,
        "results": None,
        "hints": None,
        "verdict": {},
        "best": state.get("best", {}),
        "rounds": state.get("rounds", 0) + 1,
        "stop_reason": "",
        "spent": reset_usage(spent) if new_problem else spent,
        "remarks": remarks,
        **({"answer_format": planned_format} if planned_format or earlier_format else {}),
    }


async def schedule(state: ReasoningState) -> dict[str, Any]:
    """Join: runs once, when all solvers of a step have ended. `after_schedule` chooses the next
    nodes.
    """
    return {}


async def after_schedule(
    state: ReasoningState, runtime: Runtime[ReasoningContext]
) -> Sequence[Send] | str:
    """Next nodes: a solver for every subgoal whose needs are met, the critic if all subgoals are
    solved, or the synthesizer if the budget is used up.
    """
    context = _context(runtime)
    left = budget_left(state, context)
    if left.used_up(calls=1):
        return "synthesize"
    waiting = ready(state.get("plan", []), state.get("results", {}))
    waiting = waiting[: min(context.max_parallel, left.calls - 1, left.tokens)]
    share = left.share(max(len(waiting), 1), calls=1)
    variables = context.session_variables
    return [
        Send("solve", solver_task(state, subgoal, share, variables=variables))
        for subgoal in waiting
    ] or "critique"


async def solve(state: SolverTask, runtime: Runtime[ReasoningContext]) -> dict[str, Any]:
    """Solver: one subgoal -> its value, by the tool loop."""
    context = _context(runtime)
    name = state["subgoal"]["name"]
    request = solver_request(
        state["problem"], state["subgoal"]["goal"], state["known"], state["hint"]
    )
    variables = {"variables": state["variables"]} if "variables" in state else {}
    budget = Budget(
        max_turns=min(context.max_turns, state["turns"]),
        max_tokens=min(context.max_answer_tokens, state["tokens"]),
        max_seconds=state["seconds"],
        max_cost=state["cost"],
        prices=context.prices,
        model=context.models.get(SOLVER),
        temperature=context.temperatures.get(SOLVER),
        tool_format=context.tool_format,
        session_variables=context.session_variables,
    )
    end, full = await run_loop(solver, [HumanMessage(request)], budget, **variables)
    if full:
        spent = spent_on(end["messages"], context.prices)
        return {"results": {name: FAILED}, "spent": spent, "remarks": [f"{name}: {full}"]}
    stop = end.get("stop_reason")
    value = stated_value(end["messages"][-1].text)
    solved = stop == StopReason.ANSWER and value
    remarks = [] if solved else [f"{name}: no value ({stop})"]
    return {
        "results": {name: solved or FAILED},
        "spent": spent_on(end["messages"], context.prices),
        "remarks": remarks,
    }


async def critique(state: ReasoningState, runtime: Runtime[ReasoningContext]) -> dict[str, Any]:
    """Critic: the results -> a verdict."""
    context = _context(runtime)
    results = ordered_results(state)
    said = await ask_role(
        CRITIC, critic_request(problem_of(state), shown(results)), _options(CRITIC, state, context)
    )
    verdict = (said.value or CriticAnswer(action="accept")).where(
        list(results), may_ask=context.ask_person
    )
    if verdict.action == "accept" and (wrong := await run_check(verdict.check, results)):
        verdict = verdict.overruled(wrong, names_in(verdict.check, list(results)))
    return {
        "critique": said.text,
        "verdict": verdict.model_dump(),
        "best": best_results(state),
        "spent": _spent(said, context),
        "remarks": (
            [f"critique: {said.complaint}; the results are accepted"] if said.value is None else []
        ),
        **_consequence(verdict, state, context),
    }


def _consequence(
    verdict: CriticAnswer, state: ReasoningState, context: ReasoningContext
) -> dict[str, Any]:
    """State update for a verdict: the subgoals to solve again, a hint, or the reason to stop."""
    rounds = state.get("rounds", 0)
    wish = f"{verdict.action} {verdict.subgoal}".strip()
    match verdict.action:
        case "accept":
            return {"hint": ""}
        case "give_up":
            return _stop(StopReason.GAVE_UP, f"The critic gave up: {verdict.hint}")
        case _ if rounds >= context.max_rounds:
            return _stop(
                StopReason.MAX_ROUNDS,
                f"After {rounds} rounds the critic still said {wish}: {verdict.hint}",
            )
        case "revise":
            return _again(state, verdict.subgoal, verdict.hint)
        case "replan" | "ask":
            return {"hint": verdict.hint}


async def after_critique(state: ReasoningState, runtime: Runtime[ReasoningContext]) -> str:
    """Node that acts on the verdict, or the synthesizer if the budget does not allow it."""
    if state.get("stop_reason") or budget_left(state, _context(runtime)).used_up(calls=1):
        return "synthesize"
    return {"revise": "schedule", "replan": "plan", "ask": "ask"}.get(
        verdict_of(state, "action"), "synthesize"
    )


def ask_person(state: ReasoningState) -> dict[str, Any]:
    """Ask a person the critic's question. The answer becomes the hint for the subgoal that the
    verdict names, or for the next plan.
    """
    told = interrupt(verdict_of(state, "hint"))
    hint = one_line(told if isinstance(told, str) else json.dumps(told, default=str), MAX_TOLD)
    subgoal = verdict_of(state, "subgoal")
    return _again(state, subgoal, hint) if subgoal else {"hint": hint}


async def after_ask(state: ReasoningState) -> str:
    """Next node: `schedule` if the verdict names a subgoal, else `plan`."""
    return "schedule" if verdict_of(state, "subgoal") else "plan"


async def synthesize(state: ReasoningState, runtime: Runtime[ReasoningContext]) -> dict[str, Any]:
    """Synthesizer: the best results -> the final text, as far as the budget allows."""
    context = _context(runtime)
    problem = problem_of(state)
    results = best_results(state)
    left = budget_left(state, context)
    asked = context.final_format or (
        "" if format_of("", problem) else state.get("answer_format", "")
    )
    wanted = format_of(asked, problem)
    said = RoleReply[str](None)
    if not left.used_up():
        request = synthesizer_request(problem, shown(results), asked)
        options = _options(SYNTHESIZER, state, context, kept_back=0)
        said = await ask_role(SYNTHESIZER, request, options, read=wanted.read if wanted else None)
    if said.value is not None:
        message = said.messages[-1]
    else:  # use a line of the replies that has the requested format, else the last result
        found = (wanted.found_in(answer.text) for answer in said.messages) if wanted else ()
        solved = (value for value in reversed(list(results.values())) if value != FAILED)
        last = next(solved, NO_ANSWER)
        message = AIMessage(
            next(filter(None, found), None) or (wanted.filled(last) if wanted else last)
        )
    accepted = verdict_of(state, "action") == "accept"
    return {
        "messages": [message],
        "spent": _spent(said, context),
        "remarks": (
            [f"synthesize: {said.complaint}"] if said.complaint and said.value is None else []
        ),
        **_end(state, said, left.used_up(calls=0 if accepted else 1)),
    }


def _end(state: ReasoningState, said: RoleReply[str], limit: StopReason | None) -> dict[str, str]:
    if stopped := state.get("stop_reason"):
        return {"stop_reason": stopped, "reason": state.get("reason", "")}
    if limit is not None:
        return _stop(
            limit, f"The budget is used up ({limit.value}); this is the best answer so far."
        )
    if said.context_full or (said.messages and was_cut(said.messages[-1])):
        return _stop(StopReason.MAX_TOKENS, "The answer was cut off.")
    return _stop(StopReason.ANSWER, "The results were accepted.")


def _stop(stop: StopReason, reason: str) -> dict[str, str]:
    return {"hint": "", "stop_reason": stop.value, "reason": reason}


def _again(state: ReasoningState, subgoal: str, hint: str) -> dict[str, Any]:
    """State update that lets a subgoal and its dependents be solved again. All other results are
    kept.
    """
    affected = dependents(state.get("plan", []), subgoal)
    return {
        "results": dict.fromkeys(affected),
        "hints": {subgoal: hint},
        "hint": "",
        "rounds": state.get("rounds", 0) + 1,
    }


def _context(runtime: Runtime[ReasoningContext]) -> ReasoningContext:
    return runtime.context or ReasoningContext()


def _options(
    role: Role[Any], state: ReasoningState, context: ReasoningContext, kept_back: int = 1
) -> CallOptions:
    left = budget_left(state, context)
    tokens = min(context.max_answer_tokens, left.tokens)
    calls = min(2, left.calls - kept_back)
    return CallOptions(
        context.models.get(role.name), context.temperatures.get(role.name), tokens, calls
    )


def _spent(said: RoleReply[Any], context: ReasoningContext) -> Usage:
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
    builder.add_conditional_edges(
        "critique", after_critique, ["plan", "schedule", "ask", "synthesize"]
    )
    builder.add_conditional_edges("ask", after_ask, ["plan", "schedule"])
    builder.add_edge("synthesize", END)
    return builder.compile()


graph = _build()
