"""Stand-in for the library verifiers: the part of its v0 interface (0.3) that environments and our
adapter use.

The library itself brings some hundred packages. Tests use it instead if it is installed.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


class Message(dict[str, Any]):
    """Message whose fields are also attributes: `message["role"]` is `message.role`."""

    __getattr__ = dict[str, Any].get


class State(dict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        given = super().get("input", {})
        return (
            given[key]
            if key in given and key in ("prompt", "answer", "info", "example_id")
            else super().__getitem__(key)
        )

    def get(self, key: str, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default


class Parser:
    def parse_answer(self, completion: Any) -> str | None:
        said = [message for message in completion if message["role"] == "assistant"]
        return said[-1]["content"] if said else None


class Rubric:
    def __init__(self, funcs: Any = None, weights: Any = None, parser: Any = None) -> None:
        self.funcs = funcs or []
        self.weights = weights or [1.0] * len(self.funcs)
        self.class_objects = {"parser": parser or Parser()}

    @property
    def has_group_rewards(self) -> bool:
        return any("completions" in inspect.signature(each).parameters for each in self.funcs)

    def score_objects(self, state: Any) -> dict[str, Any]:
        found = {
            name: state.get(name) for name in ("prompt", "completion", "answer", "info", "task")
        }
        return {**found, "state": state, **self.class_objects}


class RubricGroup(Rubric):
    def __init__(self, rubrics: list[Rubric]) -> None:
        super().__init__()
        self.rubrics = rubrics

    @property
    def has_group_rewards(self) -> bool:
        return any(each.has_group_rewards for each in self.rubrics)


def num_turns(state: Any) -> float:
    return float(len(state["trajectory"]))


async def total_tool_calls(completion: Any) -> float:
    return float(sum(len(each.tool_calls or ()) for each in completion if each.role == "assistant"))


class Environment:
    def __init__(
        self, dataset: Any, eval_dataset: Any, rubric: Rubric, system_prompt: str | None = None
    ) -> None:
        self.rubric, self.system = rubric, system_prompt
        self.rows = {"train": self._formatted(dataset), "eval": self._formatted(eval_dataset)}

    def _formatted(self, rows: Any) -> list[dict[str, Any]]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [
            {
                **row,
                "example_id": number,
                "prompt": [*system, {"role": "user", "content": row["question"]}],
            }
            for number, row in enumerate(rows)
        ]

    def get_dataset(self) -> Any:
        return self.rows["train"]

    def get_eval_dataset(self) -> Any:
        return self.rows["eval"]

    async def rollout(self) -> None: ...

    async def setup_state(self, state: Any) -> Any:
        return state


class MultiTurnEnv(Environment):
    def __init__(self, **shared: Any) -> None:
        super().__init__(**shared)
        self.rubric = RubricGroup([self.rubric, Rubric([num_turns], [0.0])])

    async def env_response(self, messages: Any, state: Any) -> Any: ...


class SingleTurnEnv(MultiTurnEnv): ...


class ToolEnv(MultiTurnEnv):
    def __init__(self, tools: list[Callable[..., Any]] | None = None, **shared: Any) -> None:
        super().__init__(**shared)
        self.tools = tools or []
        self.rubric = RubricGroup([self.rubric, Rubric([total_tool_calls], [0.0])])

    async def call_tool(self, name: str) -> Any: ...


class StatefulToolEnv(ToolEnv): ...


def load_environment(env_id: str, **arguments: Any) -> Any:
    module = importlib.import_module(env_id.replace("-", "_").split("/")[-1])
    try:
        return module.load_environment(**arguments)
    except Exception as error:
        raise RuntimeError(f"Failed to load environment '{env_id}': {error}") from error


def normalize_messages(messages: Any) -> list[Message]:
    return (
        [Message(said) for said in messages]
        if isinstance(messages, list)
        else [Message(role="text", content=messages)]
    )


def modules() -> Mapping[str, ModuleType]:
    """Stand-ins for the library's modules, by their names in `sys.modules`."""
    names = ("verifiers", "verifiers.utils", "verifiers.utils.message_utils")
    return dict.fromkeys(names, sys.modules[__name__])
