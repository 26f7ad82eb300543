"""What each role is told, and how its answer is written down.

The prompts are short because the small policy reads them thousands of times in training; a larger model follows them
as well. The texts are part of what a policy was trained on: a change here makes a new cold start necessary.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "CRITIC_PROMPT",
    "PLANNER_PROMPT",
    "SOLVER_PROMPT",
    "SYNTHESIZER_PROMPT",
    "TOOL_LOOP_PROMPT",
    "critic_request",
    "planner_request",
    "solver_request",
    "synthesizer_request",
]

TOOL_LOOP_PROMPT = (
    "Think in <reason></reason>. Compute with the python tool, one call at a time. "
    "Then give the final answer as <answer>\\boxed{...}</answer>."
)
"""System turn of the tool loop."""

PLANNER_PROMPT = (
    "You are the planner. Split the problem into subgoals that python can solve. "
    'Answer with JSON only: {"subgoals": [{"name": ..., "goal": ..., "needs": [names of earlier subgoals]}]}'
)
"""System turn of the planner."""

SOLVER_PROMPT = (
    "You are the solver. Solve the one subgoal with the python tool, "
    "then give its value as <answer>\\boxed{...}</answer>."
)
"""System turn of a solver."""

CRITIC_PROMPT = (
    "You are the critic. Do the results solve the problem? Answer with JSON only: "
    '{"action": "accept", "revise" (one subgoal), "replan", "ask" (a person) or "give_up", '
    '"subgoal": its name, "hint": ..., "check": python asserts on the results}'
)
"""System turn of the critic."""

SYNTHESIZER_PROMPT = "You are the synthesizer. Give the final answer exactly in the format that the problem asks for."
"""System turn of the synthesizer."""


def planner_request(problem: str, hint: str = "") -> str:
    """User turn of the planner; `hint` is the critic's, from the second round on."""
    return f"Problem: {problem}" + (f"\nHint: {hint}" if hint else "")


def solver_request(problem: str, goal: str, known: Mapping[str, str], hint: str = "") -> str:
    """User turn of a solver: the problem, its subgoal, the named values that it needs, the critic's hint if any."""
    values = "".join(f"\n{name} = {value}" for name, value in known.items())
    told = f"\nHint: {hint}" if hint else ""
    return f"Problem: {problem}\nSubgoal: {goal}" + (f"\nKnown:{values}" if known else "") + told


def critic_request(problem: str, results: Mapping[str, str]) -> str:
    """User turn of the critic: the problem and every subgoal's value."""
    return f"Problem: {problem}\nResults:" + "".join(f"\n{name} = {value}" for name, value in results.items())


def synthesizer_request(problem: str, results: Mapping[str, str], final_format: str) -> str:
    """User turn of the synthesizer; `final_format` is shown as it was given."""
    listed = "".join(f"\n{name} = {value}" for name, value in results.items())
    return f"Problem: {problem}\nResults:{listed}" + (f"\nFormat: {final_format}" if final_format else "")
