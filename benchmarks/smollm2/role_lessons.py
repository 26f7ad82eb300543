"""Lessons of form for the four roles of the reasoning graph, on the requests of
`benchmarks.smollm2.lessons`.

    python -m benchmarks.smollm2.role_lessons LESSONS.jsonl [--count 640] [--seed 0]

The planner copies the request, or its sentences, into subgoals. A solver copies a subgoal's
operation into the tool. The critic accepts results that exist, and sends back one that is missing.
The synthesizer writes the last value as `Answer: <number>`. No lesson shows how a story becomes a
subgoal or an expression.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from benchmarks.smollm2.lessons import (
    KINDS,
    Request,
    instruction,
    on_a_list,
    turns_with_tool,
    value_of,
    write_asked,
)
from hrm_agent.graphs.parts.prompts import (
    CRITIC_PROMPT,
    PLANNER_PROMPT,
    SOLVER_PROMPT,
    SYNTHESIZER_PROMPT,
    critic_request,
    loop_system_turn,
    planner_request,
    solver_request,
    synthesizer_request,
)
from hrm_agent.graphs.reasoning.plan import FAILED
from hrm_agent.training.sft import Conversation
from hrm_agent.trajectory import derive_seed

__all__ = ["FINAL_FORMAT", "role_lessons"]

FINAL_FORMAT = "Answer: <number>"
"""Format of the final answer, as the synthesizer is told."""
ROLES = {"planner": 26, "solver": 44, "critic": 14, "synthesizer": 12, "instruction": 4}
"""Number of lessons of each role in a hundred."""
LOST_SHARE = 0.2
"""Share of the critic's lessons with a missing result."""
NAMES = ("first", "second", "third")


def role_lessons(seed: int, count: int) -> Iterator[Conversation]:
    """Yield `count` conversations, mixed by `ROLES`."""
    rng = random.Random(derive_seed(seed, "lessons of form for roles"))
    kinds = {kind: share for kind, share in KINDS.items() if kind is not instruction}
    for _ in range(count):
        role = rng.choices(list(ROLES), list(ROLES.values()))[0]
        if role == "instruction":
            asked, (answer,) = instruction(rng)
            yield Conversation((HumanMessage(asked), AIMessage(answer)))
            continue
        kind = rng.choices(list(kinds), list(kinds.values()))[0]
        request = kind(rng)
        goals = _goals(request, last_sentence=kind is on_a_list)
        yield _lesson(role, request, goals, rng)


def _goals(request: Request, *, last_sentence: bool) -> dict[str, str]:
    """Name and goal of each subgoal: a sentence for each call, or one goal for all calls. The one
    goal is the request, or its last sentence.
    """
    asked, calls = request
    sentences = [f"{text.removesuffix('.')}." for text in asked.split(". ")]
    if len(sentences) == len(calls) > 1:
        return dict(zip(NAMES, sentences, strict=False))
    return {"value": asked.split(". ")[-1] if last_sentence else asked}


def _lesson(
    role: str, request: Request, goals: Mapping[str, str], rng: random.Random
) -> Conversation:
    asked, calls = request
    names = list(goals)
    apart = [[code] for code in calls] if len(names) > 1 else [calls]
    code = dict(zip(names, apart, strict=True))
    values = {name: value_of(code[name][-1]) for name in names}
    if role == "planner":
        plan: list[dict[str, Any]] = [
            {"name": name, "goal": goals[name], "needs": names[:place][-1:]}
            for place, name in enumerate(names)
        ]
        return _told(PLANNER_PROMPT, planner_request(asked), json.dumps({"subgoals": plan}))
    if role == "solver":
        place = rng.randrange(len(names))
        known = {name: values[name] for name in names[:place][-1:]}
        told = solver_request(asked, goals[names[place]], known)
        turns = turns_with_tool(code[names[place]])
        return _conversation(loop_system_turn(SOLVER_PROMPT, fenced=True), told, turns)
    if role == "critic":
        verdict = {"action": "accept"}
        if rng.random() < LOST_SHARE:
            lost = rng.choice(names)
            values[lost] = FAILED
            verdict = {"action": "revise", "subgoal": lost, "hint": "Its value is missing."}
        return _told(CRITIC_PROMPT, critic_request(asked, values), json.dumps(verdict))
    told = synthesizer_request(asked, values, FINAL_FORMAT)
    return _told(SYNTHESIZER_PROMPT, told, f"Answer: {values[names[-1]]}")


def _told(prompt: str, request: str, answer: str) -> Conversation:
    return _conversation(prompt, request, [AIMessage(answer)])


def _conversation(prompt: str, request: str, turns: Sequence[BaseMessage]) -> Conversation:
    return Conversation((SystemMessage(prompt), HumanMessage(request), *turns))


if __name__ == "__main__":
    write_asked(role_lessons, __doc__, 640)
