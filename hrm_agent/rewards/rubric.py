"""Rubrics: named, weighted reward functions. One of them decides whether the answer is right.

A reward function gets the parameters that it names:

| parameter | value |
|---|---|
| `text` | the final text (empty if the run has none) |
| `reference` | the task's reference answer, or None |
| `task` | the `TaskRef`: id, prompt, answer, metadata |
| `trajectory` | the whole record |
| `calls`, `tool_calls` | the run's own model calls and tool calls |
| `state` | the graph's last state, by channel |
| `group` | the trajectories of all rollouts of the task, for a reward that compares them |

A reward function may be async. It returns a number, a bool, None (no opinion: left out of the sum),
or a `Scored` with a reason. It may score single calls instead of the run, or beside it (`Scored`):
by a mapping from the id of a model call or tool call to a number, or by a list with a number for
each of the run's own model calls, in their order. A function with the parameter `group` is called
once for all rollouts of a task, and returns a mapping from trajectory id to such a value. A list of
the rollouts' values is not accepted, since a wrong order would credit the wrong rollouts.

An exception, a value that is not finite and a call that takes longer than `timeout_seconds` are
typed faults (`RewardFault`). The rollout then has no reward, and is neither right nor wrong.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hrm_agent.errors import ConfigError, nearest
from hrm_agent.trajectory import JudgeCall

__all__ = ["DEFAULT_TIMEOUT_SECONDS", "Reward", "Rubric", "Scored", "as_rubric"]

DEFAULT_TIMEOUT_SECONDS = 60.0
GROUP, STATE = "group", "state"
RECORD = frozenset({"trajectory", "calls", "tool_calls", GROUP})
"""Parameters that need the calls of a trajectory."""
PARAMETERS = frozenset({"text", "reference", "task", STATE}) | RECORD
TOTAL, OUTCOME = "reward", "correct"
"""Names under which a trajectory holds the weighted sum and the outcome."""


@dataclass(frozen=True, slots=True)
class Scored:
    """Value of a reward, with a reason."""

    value: float | bool | None
    """Finite value (None: no opinion)."""
    reason: str = ""
    """Reason for the value, for people to read."""
    judge_calls: tuple[JudgeCall, ...] = ()
    """Requests to a judge that the value is based on."""
    calls: Mapping[str, float] | Sequence[float] = ()
    """Values of single calls: by id of a model call or tool call, or for each of the run's own model
    calls, in their order.
    """


@dataclass(frozen=True)
class Reward:
    """Reward function with its name and weight. Raises `ConfigError` for an unknown parameter."""

    function: Callable[..., Any]
    """Sync or async function, as described in the module's docstring."""
    name: str = ""
    """Name of the stored values (empty: the function's own name)."""
    weight: float = 1.0
    """Weight in the sum. A reward of weight 0 is only reported, and its failure is ignored."""
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """Wall-clock limit in seconds of one call."""
    asks_model: bool = False
    """True if the function sends requests to a judge model."""
    wants: frozenset[str] = field(init=False)
    """Names of the function's parameters."""

    def __post_init__(self) -> None:
        name = self.name or getattr(self.function, "__name__", type(self.function).__name__)
        object.__setattr__(self, "name", name)
        function = self.function
        if not callable(function):
            raise ConfigError(
                f"The reward {name!r} is a {type(function).__name__}, not a function.", _SHAPES
            )
        found = inspect.signature(function).parameters.values()
        wanted = [
            p.name
            for p in found
            if p.kind is not p.VAR_KEYWORD and (p.default is p.empty or p.name in PARAMETERS)
        ]
        for parameter in wanted:
            if parameter not in PARAMETERS:
                known = ", ".join(sorted(PARAMETERS))
                hint = f"{nearest(parameter, PARAMETERS)} Known: {known}.".strip()
                raise ConfigError(
                    f"The reward {name!r} has an unknown parameter {parameter!r}.",
                    hint,
                )
        object.__setattr__(self, "wants", frozenset(wanted))
        if not name.isidentifier() or name == TOTAL:
            why = (
                "the weighted sum has this name"
                if name == TOTAL
                else "a name consists of letters, digits and _"
            )
            raise ConfigError(
                f"A reward cannot be called {name!r}: {why}.",
                "Give another name: Reward(f, name=...).",
            )
        if not self.timeout_seconds > 0:
            raise ConfigError(
                f"The reward {name!r} has a timeout of {self.timeout_seconds} s.",
                "Give more than 0.",
            )

    @property
    def compares(self) -> bool:
        """True if the function compares all rollouts of a task at once."""
        return GROUP in self.wants


_SHAPES = (
    "A rubric is a Rubric, a list of functions or of Reward(function, weight=...), or one function."
)


@dataclass(frozen=True)
class Rubric:
    """Rewards that score a run. Raises `ConfigError` for an invalid rubric."""

    rewards: Sequence[Reward | Callable[..., Any]]
    """Rewards in display order."""
    outcome: str = ""
    """Name of the reward that decides whether the answer is right (empty: the reward called
    `correct`, else the first one). Its values are in [0, 1], and a value above 0.5 counts as right,
    in evaluations and for resampling on correct. A truncated run is not right.
    """
    name: str = ""
    """Name that distinguishes the rubric's scores from those of other rubrics. A rubric that is
    loaded by a name has this name.
    """
    parts: tuple[Reward, ...] = field(init=False)
    """Rewards, each as a `Reward`."""

    def __post_init__(self) -> None:
        parts = tuple(part if isinstance(part, Reward) else Reward(part) for part in self.rewards)
        names = [part.name for part in parts]
        object.__setattr__(self, "parts", parts)
        if not self.outcome:
            if not names:
                raise ConfigError("The rubric has no reward.", _SHAPES)
            object.__setattr__(self, "outcome", OUTCOME if OUTCOME in names else names[0])
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(
                f"The rubric has two rewards called {twice!r}.", "Name them: Reward(f, name=...)."
            )
        if self.outcome not in names:
            raise ConfigError(
                f"The rubric names {self.outcome!r} as its outcome, but has no reward with this"
                " name.",
                f"It has {', '.join(names)}.",
            )
        if OUTCOME in names and self.outcome != OUTCOME:
            raise ConfigError(
                f"The rubric has a reward called {OUTCOME!r}, but its outcome is another reward,"
                f" {self.outcome!r}.",
                f"The outcome is stored as {OUTCOME!r}: give the reward of this name another name.",
            )
        if all(part.weight == 0 for part in parts):
            raise ConfigError(
                "All weights of the rubric are 0.", "Give one reward a weight other than 0."
            )

    @property
    def wants(self) -> frozenset[str]:
        """Parameters of all functions."""
        return frozenset[str]().union(*(part.wants for part in self.parts))

    @property
    def judges(self) -> list[str]:
        """Names of the rewards that send requests to a judge model."""
        return [part.name for part in self.parts if part.asks_model]


def as_rubric(found: Any, name: str) -> Rubric:
    """Build a rubric from any of the forms in `_SHAPES`. Raises `ConfigError` for any other
    object.
    """
    if isinstance(found, Rubric):
        return Rubric(found.parts, found.outcome, found.name or name)
    if isinstance(found, (list, tuple)):
        return Rubric(found, name=name)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(found, Reward) or callable(found):
        return Rubric([found], name=name)
    raise ConfigError(f"{name!r} is a {type(found).__name__}, not a rubric.", _SHAPES)
