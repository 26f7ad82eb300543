"""Conditions on recorded runs: `reward<0.5`, `status=completed`, `metadata.customer~acme-*`.

A condition is a field, an operator and a value. Conditions are data: nothing in them is executed. A
missing value (the reward of a run that was not scored) fulfils no condition but `!=`, `!~` and
`=null`. `!=null` is fulfilled by every value that is there.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property
from typing import Any, cast

from hrm_agent.errors import ConfigError, nearest
from hrm_agent.trajectory import RunStatus, Scoring, StopReason, Trajectory

__all__ = ["FIELDS", "Condition", "read_condition"]

_OPERATORS = ("<=", ">=", "!=", "!~", "<", ">", "=", "~")
_CONDITION = re.compile(
    rf"([^<>=!~]+?)\s*({'|'.join(map(re.escape, _OPERATORS))})\s*(.*)", re.DOTALL
)
_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}
_TEXTS: Mapping[str, Callable[[Trajectory], str | None]] = {
    "answer": lambda run: run.answer,
    "error": lambda run: run.error,
    "family": lambda run: run.task.family,
    "graph": lambda run: run.graph,
    "policy": lambda run: run.policy,
    "prompt": lambda run: run.task.prompt,
    "run": lambda run: run.run_id,
    "status": lambda run: run.status.value,
    "stop_reason": lambda run: run.stop_reason.value if run.stop_reason else None,
    "task": lambda run: run.task.id,
    "thread": lambda run: run.thread_id,
    "trajectory": lambda run: run.id,
}
_NUMBERS: Mapping[str, Callable[[Trajectory], float | None]] = {
    "calls": lambda run: len(run.own_calls),
    "correct": lambda run: run.rewards.get("correct"),
    "reward": lambda run: run.reward if run.rewards else None,
    "tokens": lambda run: run.used.output_tokens,
    "tool_errors": lambda run: sum(
        call.status is not None and call.status.is_policy_failure for call in run.own_tool_calls
    ),
    "turns": lambda run: 1 + len(run.turns),
}
_SEVERAL: Mapping[str, Callable[[Trajectory], set[str]]] = {
    "role": lambda run: {call.identity.role for call in run.own_calls},
    "tool": lambda run: {call.name for call in run.own_tool_calls},
}
_KEYED = ("metadata", "rewards", "scores")
_OF_CALLS = ("calls", "role", "tokens", "tool", "tool_errors")
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_CHOICES = {"status": RunStatus, "stop_reason": StopReason}
FIELDS = (*sorted({*_TEXTS, *_NUMBERS, *_SEVERAL}), *(f"{name}.NAME" for name in _KEYED))
"""Fields of conditions. `scores.NAME` is the reward by scores of a rubric, or of users
(`feedback`).
"""


@dataclass(frozen=True)
class Condition:
    """One condition on a recorded run."""

    text: str
    """Condition as it was given."""
    field: str
    """Name of the field, without the key of `metadata`, `rewards` or `scores`."""
    key: str
    """Key in the field (empty for a field without keys)."""
    operator: str
    """Operator: one of `<= >= != !~ < > = ~`."""
    value: Any
    """Value that is compared: a number, a text, or a JSON value for a key of the metadata (None:
    `null`, a missing value).
    """

    @property
    def reads_calls(self) -> bool:
        """True if the calls of a run are needed."""
        return self.field in _OF_CALLS

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(translate(str(self.value)))

    def holds(self, run: Trajectory, scorings: Mapping[str, Scoring]) -> bool:
        """True if the run fulfils the condition. `scorings`: the run's later scores by rubric."""
        if self.field in _SEVERAL:
            found = _SEVERAL[self.field](run)
            negated = self.operator.startswith("!")
            if self.value is None:
                return negated == bool(found)
            return negated != any(self._compare(each, self.operator.lstrip("!")) for each in found)
        value = self._value(run, scorings)
        if self.value is None:
            return (value is None) == (self.operator == "=")
        return (
            self.operator.startswith("!") if value is None else self._compare(value, self.operator)
        )

    def _value(self, run: Trajectory, scorings: Mapping[str, Scoring]) -> Any:
        match self.field:
            case "metadata":
                return _at(run.task.metadata, self.key)
            case "rewards":
                return run.rewards.get(self.key)
            case "scores":
                found = scorings.get(self.key)
                return found.rewards.get("reward") if found is not None else None
            case field if field in _NUMBERS:
                return _NUMBERS[field](run)
            case field:
                return _TEXTS[field](run)

    def _compare(self, value: Any, by: str) -> bool:
        if by in ("~", "!~"):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            return (self._pattern.fullmatch(text) is not None) != (by == "!~")
        if by in ("=", "!="):
            # `true` is not 1, as in JSON
            same = isinstance(value, bool) == isinstance(self.value, bool) and value == self.value
            text = isinstance(value, str) and self.field == "metadata"
            return (same or (text and value == _given(self.text))) == (by == "=")
        # traces often have numbers as texts
        number = _number(value) if isinstance(value, str) else value
        return _is_number(number) and _ORDER[by](number, self.value)


def read_condition(text: str) -> Condition:
    """Parse a condition. Raises `ConfigError`."""
    found = _CONDITION.fullmatch(text.strip())
    if found is None:
        raise ConfigError(
            f"--where {text[:80]!r} is not a condition.",
            "Write FIELD OPERATOR VALUE, as reward<0.5, status=completed or thread~prod-*.",
        )
    named, sign, given = found.groups()
    field, dot, key = named.partition(".")
    if (field in _KEYED) != bool(dot and key) or (
        field not in _KEYED and field not in {*_TEXTS, *_NUMBERS, *_SEVERAL}
    ):
        near = nearest(named, FIELDS)
        raise ConfigError(
            f"--where has no field {named[:80]!r}.", f"{near} Known: {', '.join(FIELDS)}.".strip()
        )
    if sign in ("=", "!=", "~", "!~") and given.startswith(("=", "~")):
        raise ConfigError(
            f"--where {text[:80]!r} has two operators, {sign} and {given[0]}.",
            f"Write one of them. A text that begins with {given[0]} is found by a pattern:"
            f" {named[:40]}~[{given[0]}]*",
        )
    value = _value_given(text, named, field, sign, given)
    return Condition(text, field, key, sign, value)


def _value_given(text: str, named: str, field: str, sign: str, given: str) -> Any:
    """Value of a condition, of the type that its field and operator compare."""
    value: Any = given
    if sign in ("=", "!=") and given == "null":
        value = None
    elif field in _NUMBERS or field in ("rewards", "scores") or sign in ("<", "<=", ">", ">="):
        if sign in ("~", "!~") or field in _TEXTS or field in _SEVERAL:
            kind = "a number" if sign in ("~", "!~") else "a text"
            raise ConfigError(
                f"--where {text[:80]!r}: {named} is {kind}, which {sign} does not compare.",
                "Numbers take < <= > >= = !=, and texts = != ~ !~.",
            )
        value = _number(given)
        if value is None:
            raise ConfigError(f"--where {text[:80]!r}: {given[:40]!r} is not a number.", "")
    elif field == "metadata" and sign in ("=", "!="):
        if given in _PYTHON:
            raise ConfigError(
                f"--where {text[:80]!r}: values of the metadata are JSON, which has no {given}.",
                f'Write {_PYTHON[given]}, or "{given}" with its quotes for a text.',
            )
        value = _json(given)
    elif field in _CHOICES and sign in ("=", "!="):
        known = [each.value for each in _CHOICES[field]]
        if given not in known:
            near = nearest(given, known)
            raise ConfigError(
                f"--where {text[:80]!r}: there is no {field} {given[:40]!r}.",
                f"{near} Known: {', '.join(known)}.".strip(),
            )
    return value


def _given(text: str) -> str:
    """Value of a condition as it was written."""
    found = _CONDITION.fullmatch(text.strip())
    assert found is not None
    return found[3]


def _at(metadata: Mapping[str, Any], key: str) -> Any:
    """Value at `a.b`: of the key `a.b` itself, else of `b` within `a` (None without one)."""
    if key in metadata:
        return metadata[key]
    first, dot, rest = key.partition(".")
    inner = metadata.get(first)
    return _at(cast("Mapping[str, Any]", inner), rest) if dot and isinstance(inner, dict) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(text: str) -> float | None:
    value = _json(text)
    return value if _is_number(value) else None


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text


def _no_constant(name: str) -> Any:
    raise ValueError(name)
