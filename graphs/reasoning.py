"""The hierarchical reasoning agent: Planner, Solvers, Critic, Synthesizer.

    START -> plan -> schedule -> solve (one per ready subgoal, side by side) -> schedule -> ...
                        |
                        +-> critique -> plan (revise, within the round budget)
                               |
                               +-> synthesize -> END

The planner splits the problem into named subgoals that may need each other's values. `schedule` starts a solver for
every subgoal whose needs are met; solvers that do not need each other run side by side, each one a tool loop of its
own. The critic submits, or sends the plan back with a hint. The synthesizer writes the final text in the format that
was asked for.

A role that answers with what cannot be read does not end the run: an unreadable plan becomes one subgoal, the problem
itself; an unreadable critique submits. Both stand in the record as they were sampled.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime
from langgraph.types import Send
from typing_extensions import TypedDict  # typing's has too little for LangGraph's JSON schemas before Python 3.12

from graphs.answers import final_answer, first_json_object
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
from graphs.tool_loop import Budget, build_tool_loop
from hrm_agent.models import policy, was_cut
from hrm_agent.trajectory import StopReason

__all__ = ["ReasoningContext", "ReasoningState", "Subgoal", "graph", "read_plan"]

FAILED = "failed"
"""Value of a subgoal whose solver gave no answer."""


@dataclass(frozen=True)
class ReasoningContext:
    """What one run may use. Passed as LangGraph's run context."""

    max_rounds: int = 2
    """Plans that may be tried, the first one included."""
    max_turns: int = 6
    """Turns of each solver."""
    max_tokens: int = 1024
    """Sampled tokens of each solver, and of each other role's answer."""
    max_seconds: float = 600.0
    """Wall-clock time of each solver."""
    final_format: str = ""
    """How the answer is to be written, where the problem does not say it itself."""


class Subgoal(TypedDict):
    """One part of a plan."""

    name: str
    """A Python identifier; later subgoals and the critic know the value by it."""
    goal: str
    needs: list[str]
    """Names of subgoals whose values this one needs."""


def _merge(old: dict[str, str], new: dict[str, str] | None) -> dict[str, str]:
    """Values of one round side by side; None begins a new round."""
    return {} if new is None else {**old, **new}


class ReasoningState(TypedDict):
    """One problem on its way through the roles."""

    messages: Annotated[list[AnyMessage], add_messages]
    """The problem comes in as the last human message; the final answer is appended."""
    plan: NotRequired[list[Subgoal]]
    results: NotRequired[Annotated[dict[str, str], _merge]]
    """Value of each solved subgoal of this round, by name, in the order of the plan."""
    critique: NotRequired[str]
    """What the critic said of this round, as it said it."""
    hint: NotRequired[str]
    """The critic's, for the next plan; empty when it submits."""
    rounds: NotRequired[int]
    """Plans made so far."""
    stop_reason: NotRequired[str]


class SolverTask(TypedDict):
    """What one solver is sent."""

    problem: str
    subgoal: Subgoal
    known: dict[str, str]


solver = build_tool_loop(SOLVER_PROMPT)


async def plan(state: ReasoningState, runtime: Runtime[ReasoningContext]) -> dict[str, Any]:
    """Planner: the problem -> named subgoals."""
    problem = _problem(state)
    answer = await _ask(PLANNER_PROMPT, planner_request(problem, state.get("hint", "")), runtime)
    return {"plan": read_plan(answer, problem), "results": None, "rounds": state.get("rounds", 0) + 1}


def schedule(state: ReasoningState) -> dict[str, Any]:
    """A join: runs once after all solvers of a step. What comes next is decided on its way out."""
    return {}


def after_schedule(state: ReasoningState) -> Sequence[Send] | str:
    """A solver for every subgoal whose needs are met; the critic when all are solved."""
    subgoals, results = state.get("plan", []), state.get("results", {})
    ready = [s for s in subgoals if s["name"] not in results and all(need in results for need in s["needs"])]
    return [
        Send("solve", SolverTask(problem=_problem(state), subgoal=s, known={n: results[n] for n in s["needs"]}))
        for s in ready
    ] or "critique"


async def solve(state: SolverTask, runtime: Runtime[ReasoningContext]) -> dict[str, Any]:
    """Solver: one subgoal -> its value, by the tool loop."""
    context = runtime.context or ReasoningContext()
    request = solver_request(state["problem"], state["subgoal"]["goal"], state["known"])
    budget = Budget(max_turns=context.max_turns, max_tokens=context.max_tokens, max_seconds=context.max_seconds)
    end = await solver.ainvoke({"messages": [HumanMessage(request)]}, context=budget)
    value = final_answer(end["messages"][-1].text) if end.get("stop_reason") == StopReason.ANSWER else None
    return {"results": {state["subgoal"]["name"]: value or FAILED}}


async def critique(state: ReasoningState, runtime: Runtime[ReasoningContext]) -> dict[str, Any]:
    """Critic: submit, or a hint for another plan."""
    answer = await _ask(CRITIC_PROMPT, critic_request(_problem(state), _ordered(state)), runtime)
    verdict = first_json_object(answer) or {}
    hint = str(verdict.get("hint") or "Try again.") if verdict.get("action") == "revise" else ""
    return {"critique": answer, "hint": hint}


def after_critique(state: ReasoningState, runtime: Runtime[ReasoningContext]) -> str:
    """Another plan if the critic asks for one and the round budget allows it."""
    context = runtime.context or ReasoningContext()
    return "plan" if state.get("hint") and state.get("rounds", 0) < context.max_rounds else "synthesize"


async def synthesize(state: ReasoningState, runtime: Runtime[ReasoningContext]) -> dict[str, Any]:
    """Synthesizer: the results -> the final text."""
    context = runtime.context or ReasoningContext()
    request = synthesizer_request(_problem(state), _ordered(state), context.final_format)
    message = await _answer(SYNTHESIZER_PROMPT, request, runtime)
    reason = StopReason.MAX_TOKENS if was_cut(message) else StopReason.ANSWER
    return {"messages": [message], "stop_reason": reason.value}


async def _answer(prompt: str, request: str, runtime: Runtime[ReasoningContext]) -> AIMessage:
    context = runtime.context or ReasoningContext()
    return await policy(max_tokens=context.max_tokens).ainvoke([SystemMessage(prompt), HumanMessage(request)])


async def _ask(prompt: str, request: str, runtime: Runtime[ReasoningContext]) -> str:
    return (await _answer(prompt, request, runtime)).text


def _problem(state: ReasoningState) -> str:
    return next(message.text for message in reversed(state["messages"]) if message.type == "human")


def _ordered(state: ReasoningState) -> dict[str, str]:
    """Results in the order of the plan, whichever solver finished first."""
    results = state.get("results", {})
    return {s["name"]: results.get(s["name"], FAILED) for s in state.get("plan", [])}


def read_plan(text: str, problem: str) -> list[Subgoal]:
    """The planner's subgoals; one subgoal, the problem itself, where its answer holds no usable plan.

    A need that no earlier subgoal meets is dropped, so that no plan can wait for itself.
    """
    listed: Any = (first_json_object(text) or {}).get("subgoals")
    subgoals: list[Subgoal] = []
    items: list[Any] = listed if isinstance(listed, list) else []
    for item in items:
        read = _read_subgoal(item, {s["name"] for s in subgoals})
        if read is not None:
            subgoals.append(read)
    return subgoals or [Subgoal(name="answer", goal=problem, needs=[])]


def _read_subgoal(item: Any, earlier: set[str]) -> Subgoal | None:
    fields: dict[str, Any] = item if isinstance(item, dict) else {}
    goal, needs = fields.get("goal"), fields.get("needs")
    name = re.sub(r"\W", "_", str(fields.get("name") or "")) or f"part_{len(earlier) + 1}"
    if not isinstance(goal, str) or name in earlier or not name.isidentifier():
        return None
    wanted: list[Any] = needs if isinstance(needs, list) else []
    return Subgoal(name=name, goal=goal, needs=[need for need in wanted if need in earlier])


def _build() -> Any:
    builder = StateGraph(ReasoningState, context_schema=ReasoningContext)
    builder.add_node("plan", plan)
    builder.add_node("schedule", schedule)
    builder.add_node("solve", solve, input_schema=SolverTask)
    builder.add_node("critique", critique)
    builder.add_node("synthesize", synthesize)
    builder.add_edge(START, "plan")
    builder.add_edge("plan", "schedule")
    builder.add_conditional_edges("schedule", after_schedule, ["solve", "critique"])
    builder.add_edge("solve", "schedule")
    builder.add_conditional_edges("critique", after_critique, ["plan", "synthesize"])
    builder.add_edge("synthesize", END)
    return builder.compile()


graph = _build()
