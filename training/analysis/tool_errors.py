"""Tool calls that failed, over a training: by typed status first, and those with status `error` by class of exception.

The status is decided by the side that enforces it. The class is read from the last line of what the code wrote to
standard error, which is the code's own text: a label for a table, and nothing is decided by it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hrm_agent.training.analysis.facts import RolloutFacts, StepMetrics

__all__ = ["ErrorClass", "ToolErrorRow", "error_class", "error_classes", "error_line", "tool_error_rows"]

_NAMED = re.compile(r"(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w{0,59})(?::|$)")
_UNNAMED = "no exception named"
_LONGEST = 160
"""Characters of an example."""


@dataclass(frozen=True, slots=True)
class ToolErrorRow:
    """Tool calls of one part of a run."""

    part: str
    """Name of the part."""
    step: int | None
    """Training step, counted from 1; None outside of training."""
    rollouts: int
    """Rollouts of the part."""
    calls: int
    """Their tool calls."""
    statuses: dict[str, int]
    """Tool calls by status, `ok` included."""
    errors: dict[str, int]
    """Those with status `error` by class of exception."""
    correct_with_tool_error: float
    """Share of correct rollouts with a tool call that failed by the policy's doing, as `metrics.jsonl` has it; nan if
    none is correct."""


@dataclass(frozen=True, slots=True)
class ErrorClass:
    """Tool calls that raised one class of exception, over the whole run."""

    name: str
    """The class."""
    calls: int
    """Tool calls that ended by it."""
    correct_rollouts: int
    """Correct rollouts with such a call."""
    example: str
    """The commonest last line, cut where it is long."""


def error_line(stderr: str) -> str:
    """The last line with anything on it, cut where it is long."""
    lines = stderr[-4096:].split("\n")
    return next((line.strip()[:_LONGEST] for line in reversed(lines) if line.strip()), "")


def error_class(stderr: str) -> str:
    """`NameError` of a traceback that ends so."""
    found = _NAMED.match(error_line(stderr))
    return found[1] if found else _UNNAMED


def tool_error_rows(facts: Sequence[RolloutFacts], metrics: dict[str, StepMetrics]) -> list[ToolErrorRow]:
    """One row for each part, in the order of the facts; `metrics` by part."""
    parts: dict[str, list[RolloutFacts]] = {}
    for each in facts:
        parts.setdefault(each.part, []).append(each)
    return [_row(name, of_part, metrics[name]) for name, of_part in parts.items()]


def error_classes(facts: Iterable[RolloutFacts]) -> list[ErrorClass]:
    """The commonest first."""
    lines: dict[str, Counter[str]] = {}
    right: Counter[str] = Counter()
    for each in facts:
        for name, line in each.error_examples:
            lines.setdefault(name, Counter())[line] += 1
        right.update(each.errors.keys() if each.correct else ())
    found = [ErrorClass(name, seen.total(), right[name], seen.most_common(1)[0][0]) for name, seen in lines.items()]
    return sorted(found, key=lambda each: (-each.calls, each.name))


def _row(name: str, facts: Sequence[RolloutFacts], metrics: StepMetrics) -> ToolErrorRow:
    statuses = sum((each.statuses for each in facts), Counter[str]())
    errors = sum((each.errors for each in facts), Counter[str]())
    return ToolErrorRow(
        part=name,
        step=facts[0].step,
        rollouts=len(facts),
        calls=statuses.total(),
        statuses=dict(statuses.most_common()),
        errors=dict(errors.most_common()),
        correct_with_tool_error=metrics["rollout/correct_with_tool_error"],
    )
