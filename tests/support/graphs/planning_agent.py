"""Plan and execute, as users write it: a planner whose JSON is read strictly, and a worker that
carries the plan out.

Pydantic validates the planner's answer, and raises on an answer that is no plan. Nothing catches
the error.
"""

from __future__ import annotations

from typing import Any, TypedDict

from langgraph.graph import START, StateGraph
from pydantic import BaseModel, ConfigDict

from hrm_agent.models import policy
from hrm_agent.training.tasks import Task


class Plan(BaseModel):
    """The task."""

    model_config = ConfigDict(strict=True, extra="forbid")

    goal: str
    numbers: list[int]


class State(TypedDict, total=False):
    question: str
    plan: Plan
    answer: str


async def make_plan(state: State) -> dict[str, Any]:
    reply = await policy(max_tokens=48).ainvoke([("user", f"Plan: {state['question']}")])
    return {"plan": Plan.model_validate_json(reply.text)}


def carry_out(state: State) -> dict[str, Any]:
    plan = state["plan"]
    if plan.goal not in ("sum", "difference"):
        raise RuntimeError(f"nobody knows how to reach {plan.goal!r}")
    first, second = plan.numbers
    return {"answer": str(first + second if plan.goal == "sum" else first - second)}


graph = (
    StateGraph(State)
    .add_node("make_plan", make_plan)
    .add_node("carry_out", carry_out)
    .add_edge(START, "make_plan")
    .add_edge("make_plan", "carry_out")
    .compile()
)


def sums(split: str, seed: int, count: int | None = None) -> list[Task]:
    """Additions and subtractions of numbers below 10."""
    del seed
    first = 0 if split == "train" else 50
    return [_sum(i) for i in range(first, first + (50 if count is None else count))]


def _sum(i: int) -> Task:
    a, b = (i * 7) % 10, (i * 3 + i // 10) % 10
    goal = "sum" if i % 2 else "difference"
    right = str(a + b if goal == "sum" else a - b)
    return Task(
        id=f"{split_name(i)}-{i}",
        prompt=f"{goal} {a} {b}",
        answer=right,
        verify=lambda text: float(text == right),
    )


def split_name(i: int) -> str:
    return "train" if i < 50 else "eval"


def lesson(i: int) -> dict[str, Any]:
    """Conversation of the cold start: the plan of a sum. Two in five plans are invalid JSON."""
    a, b = (i * 7 + i // 3) % 10, (i * 3 + i // 10) % 10
    goal = "sum" if i % 2 else "difference"
    plan = f'{{"goal": "{goal}", "numbers": [{a}, {b}]}}'
    slips = (
        plan,
        plan,
        plan,
        plan.replace('"', "'"),
        plan[:-2],
        plan,
        plan.replace("[", "("),
        f"Plan: {plan}",
        plan,
    )
    asked, answered = (
        {"role": "user", "content": f"Plan: {goal} {a} {b}"},
        slips[i * 5 % len(slips)],
    )
    return {"messages": [asked, {"role": "assistant", "content": answered}]}
