"""Environments of sums, in one turn or with a tool, as packages for the library verifiers contain
them (v0 interface).
"""

from __future__ import annotations

from typing import Any

import verifiers as vf
from datasets import Dataset


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first one.
        b: The second one.
    """
    return a + b


def exact(completion: list[Any], answer: str, parser: Any) -> float:
    return float((parser.parse_answer(completion) or "").endswith(answer))


async def short(completion: list[Any], info: dict[str, Any], **kwargs: Any) -> float:
    return float(len(completion[-1]["content"]) <= info["most"])


def turns(state: Any) -> float:
    return float(len(state["completion"]))


def used(completion: list[Any]) -> float:
    """Give 1 if a tool was asked for the sum and gave it."""
    asked = [call for said in completion for call in said.get("tool_calls") or ()]
    given = [said["content"] for said in completion if said["role"] == "tool"]
    return float(len(asked) == 1 and given == ["100"])


def torn(completion: list[Any]) -> float:
    raise ConnectionError("the judge is away")


def compared(completions: list[Any]) -> list[float]:
    return [0.0 for _ in completions]


class Talking(vf.MultiTurnEnv):
    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        return [{"role": "user", "content": "Go on."}]


class Prepared(vf.SingleTurnEnv):
    async def setup_state(self, state: Any) -> Any:
        return state


class Stateful(vf.StatefulToolEnv):
    def update_tool_args(self, *arguments: Any, **named: Any) -> Any:
        return {}


def load_environment(kind: str = "single", size: int = 3, system: str | None = None) -> Any:
    if kind == "broken":
        raise ValueError("no such kind")
    rows = [
        {"question": f"{i} + {i}?", "answer": str(2 * i), "info": {"most": 20}} for i in range(size)
    ]
    held_out = Dataset.from_list([{"question": "50 + 50?", "answer": "100", "info": {"most": 20}}])
    rubrics = {
        "torn": vf.Rubric(funcs=[torn]),
        "group": vf.Rubric(funcs=[compared]),
        "watched": vf.Rubric(funcs=[turns], weights=[0.0]),
        "used": vf.Rubric(funcs=[exact, used], weights=[0.5, 1.5]),
    }
    rubric = rubrics.get(kind, vf.Rubric(funcs=[exact, short, turns], weights=[1.0, 0.25, 0.0]))
    shared = {
        "dataset": Dataset.from_list(rows),
        "eval_dataset": held_out,
        "rubric": rubric,
        "system_prompt": system,
    }
    if kind in ("tool", "used"):
        return vf.ToolEnv(tools=[add], **shared)
    kinds = {"talking": Talking, "prepared": Prepared, "stateful": Stateful}
    return kinds.get(kind, vf.SingleTurnEnv)(**shared)
