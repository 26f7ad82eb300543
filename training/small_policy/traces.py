"""Demonstrations for the small policy, in the form of the graphs' conversations.

Every message is exactly what a graph would send, or a policy would answer, at run time: prompts and
requests come from `hrm_agent.graphs.parts.prompts`, the tool is the python tool, and the tool's
formatter writes its output. If demonstrations merely resembled rollouts, they would teach a policy
to answer prompts that it never meets.

The tool loop is taught sloppily on purpose, since reinforcement learning needs something to
improve. Some of its traces guess a number without the tool. Of the others, some make a call that
fails before a call that works. The roles of the hierarchical graph are taught without faults.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from itertools import count as naturals
from string import digits
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.utils.function_calling import convert_to_openai_tool

from hrm_agent.graphs.parts.prompts import (
    CRITIC_PROMPT,
    PLANNER_PROMPT,
    SOLVER_PROMPT,
    SYNTHESIZER_PROMPT,
    TOOL_LOOP_PROMPT,
    critic_request,
    planner_request,
    solver_request,
    synthesizer_request,
)
from hrm_agent.tools import python
from hrm_agent.training.sft import Conversation
from hrm_agent.training.small_policy.snippets import tool_text
from hrm_agent.training.tasks.word_problems import (
    Form,
    PlanStep,
    Split,
    WordProblem,
    sample_problems,
)
from hrm_agent.trajectory import derive_seed

__all__ = [
    "FAILED",
    "GUESS_THOUGHTS",
    "PYTHON_TOOL",
    "REPAIR_THOUGHTS",
    "SOLVER_THOUGHT",
    "answer_turn",
    "broken",
    "critic_trace",
    "demonstrations",
    "draw_form",
    "evenly",
    "missing_hint",
    "plan_results",
    "planner_trace",
    "solver_trace",
    "synthesizer_trace",
    "tool_loop_trace",
    "tool_turns",
    "wrong_number",
]

GUESS_SHARE = 0.38
"""Share of the tool loop's traces that answer without the tool, with a wrong number."""
SLIP_SHARE = 0.4
"""Share of the tool loop's traces with tool calls whose first call fails."""
LOST_SHARE = 0.15
"""Share of the critic's traces with a missing result."""
KINDS = {"tool_loop": 36, "solver": 38, "synthesizer": 16, "planner": 4, "critic": 6}
"""Number of demonstrations of each kind in a hundred."""
HINT_SHARE = 0.3
"""Share of the planner's traces that are a second round."""
REVISION_SHARE = 0.15
"""Share of the solvers' traces in which the critic has sent the subgoal back."""
FORMAT_SHARE = 0.25
"""Share of the synthesizer's traces in which the format is given beside the problem, not in it."""
FAILED = "failed"
"""Text in place of the value of a subgoal that has no value."""
SOLVER_THOUGHT = "I solve the subgoal."
PYTHON_TOOL: dict[str, Any] = convert_to_openai_tool(python)
"""Tool as offered to the policy."""

FIRST_THOUGHTS = ("I compute it with python.", "Python can do this.", "One call will do.")
GUESS_THOUGHTS = ("I can tell at once.", "This needs no tool.")
REPAIR_THOUGHTS = ("The call failed. I repair it.", "That was no good call. Once more.")
LAST_THOUGHTS = ("That is the value.", "Python has computed it.")


def demonstrations(split: Split, seed: int, count: int) -> Iterator[Conversation]:
    """Yield `count` conversations, mixed by `KINDS`, each about a different problem."""
    rng = random.Random(derive_seed(seed, "demonstrations", split))
    guesses = evenly(GUESS_SHARE)
    for problem in sample_problems(split, seed, count):
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        yield (
            tool_loop_trace(problem, rng, next(guesses))
            if kind == "tool_loop"
            else TRACES[kind](problem, rng)
        )


def evenly(share: float) -> Iterator[bool]:
    """Booleans of which, in any sequence of successive ones, the given share is True, give or take
    one.

    A trained policy guesses as often as its last few hundred traces of the tool loop. With
    independent draws, policies of two seeds would differ as much as after some steps of
    reinforcement learning.
    """
    return (int((k + 1) * share) > int(k * share) for k in naturals())


def tool_loop_trace(
    problem: WordProblem, rng: random.Random, guess: bool | None = None
) -> Conversation:
    """Sloppy trace of the tool loop: a guess, or a good tool call, possibly after a call that
    fails. `guess`: True for a guess (None: drawn at random).
    """
    head = [SystemMessage(TOOL_LOOP_PROMPT), HumanMessage(problem.prompt())]
    if guess is None:
        guess = rng.random() < GUESS_SHARE
    if guess:
        return _conversation(
            *head, answer_turn(rng.choice(GUESS_THOUGHTS), wrong_guess(problem, rng))
        )
    slip = (
        tool_turns(rng.choice(FIRST_THOUGHTS), broken(problem.expression, rng))
        if rng.random() < SLIP_SHARE
        else []
    )
    thought = rng.choice(REPAIR_THOUGHTS if slip else FIRST_THOUGHTS)
    return _conversation(
        *head,
        *slip,
        *tool_turns(thought, problem.expression),
        answer_turn(rng.choice(LAST_THOUGHTS), problem.answer),
    )


def planner_trace(problem: WordProblem, rng: random.Random) -> Conversation:
    """Trace of the planner: the template's plan. The request may contain a hint of the critic."""
    hint = missing_hint(rng.choice(problem.plan)) if rng.random() < HINT_SHARE else ""
    subgoals = [
        {"name": step.name, "goal": step.goal, "needs": list(step.needs)} for step in problem.plan
    ]
    request = planner_request(problem.prompt(draw_form(rng)), hint)
    return _role(PLANNER_PROMPT, request, json.dumps({"subgoals": subgoals}))


def solver_trace(problem: WordProblem, rng: random.Random) -> Conversation:
    """Trace of a solver: one call, then the value."""
    step = rng.choice(problem.plan)
    known = {earlier.name: earlier.value for earlier in problem.plan if earlier.name in step.needs}
    hint = missing_hint(step) if rng.random() < REVISION_SHARE else ""
    return _conversation(
        SystemMessage(SOLVER_PROMPT),
        HumanMessage(solver_request(problem.prompt(draw_form(rng)), step.goal, known, hint)),
        *tool_turns(SOLVER_THOUGHT, step.code),
        answer_turn(LAST_THOUGHTS[0], step.value),
    )


def critic_trace(problem: WordProblem, rng: random.Random) -> Conversation:
    """Trace of the critic, which accepts if all results exist, and else sends back the subgoal
    without a result.
    """
    results = plan_results(problem)
    verdict = {"action": "accept"}
    if rng.random() < LOST_SHARE:
        lost = rng.choice(problem.plan)
        results[lost.name] = FAILED
        verdict = {"action": "revise", "subgoal": lost.name, "hint": missing_hint(lost)}
    return _role(
        CRITIC_PROMPT, critic_request(problem.prompt(draw_form(rng)), results), json.dumps(verdict)
    )


def synthesizer_trace(problem: WordProblem, rng: random.Random) -> Conversation:
    """Trace of the synthesizer: the last result, in the format that the problem or the request
    prescribes.
    """
    form = draw_form(rng)
    asked = f"Answer: <{problem.unit}>" if rng.random() < FORMAT_SHARE else ""
    request = synthesizer_request(problem.prompt(form), plan_results(problem), asked)
    return _role(SYNTHESIZER_PROMPT, request, problem.final_text("exact" if asked else form))


TRACES: dict[str, Callable[[WordProblem, random.Random], Conversation]] = {
    "tool_loop": tool_loop_trace,
    "solver": solver_trace,
    "synthesizer": synthesizer_trace,
    "planner": planner_trace,
    "critic": critic_trace,
}


def wrong_guess(problem: WordProblem, rng: random.Random) -> str:
    """Wrong number with as many digits as the answer."""
    return wrong_number(problem.answer, rng)


def wrong_number(value: str, rng: random.Random) -> str:
    """Another number of the same length, with the same first character if `value` has several."""
    kept = 1 if len(value) > 1 else 0
    while True:
        rest = (rng.choice(digits) if char in digits else char for char in value[kept:])
        guess = value[:kept] + "".join(rest)
        if guess != value:
            return guess


def broken(expression: str, rng: random.Random) -> str:
    """Expression with one error: an unknown name, or an unmatched parenthesis on either side."""
    match rng.randrange(3):
        case 0:
            return re.sub(r"\d+", "number", expression, count=1)
        case 1:
            return f"({expression}"
        case _:
            return f"{expression})"


def draw_form(rng: random.Random) -> Form:
    """Draw the form of a problem. plain: it only asks. exact: it also prescribes the final text."""
    return rng.choice(("plain", "exact"))


def plan_results(problem: WordProblem) -> dict[str, str]:
    """Right values of all subgoals of the plan."""
    return {step.name: step.value for step in problem.plan}


def missing_hint(step: PlanStep) -> str:
    """Hint of the critic for a subgoal without a value."""
    return f"{step.name} is missing"


def _role(prompt: str, request: str, answer: str) -> Conversation:
    return Conversation((SystemMessage(prompt), HumanMessage(request), AIMessage(answer)))


def _conversation(*messages: BaseMessage) -> Conversation:
    return Conversation(messages, (PYTHON_TOOL,))


def answer_turn(thought: str, value: str) -> AIMessage:
    """Last turn of a tool loop."""
    return AIMessage(f"<reason>{thought}</reason><answer>\\boxed{{{value}}}</answer>")


def tool_turns(thought: str, code: str) -> list[BaseMessage]:
    """Turn with a tool call, and the tool's output."""
    call = {"name": PYTHON_TOOL["function"]["name"], "args": {"code": code}, "id": "call"}
    return [
        AIMessage(f"<reason>{thought}</reason>", tool_calls=[call]),
        ToolMessage(tool_text(code), tool_call_id="call", name=call["name"]),
    ]
