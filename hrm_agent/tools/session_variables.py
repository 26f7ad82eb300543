"""Initial variables of a Python session: values of the task, which code can use without copying
them.

The variables are part of a session's definition, like its recorded calls. A cell before all others
sets them whenever the session is built. This cell is not a call, as no model asked for it, so it
has no record and is not counted. The values are given by the tool, which a graph makes from its
state. So a resumed run and a fork start with the same variables.

The values come from tasks and from models. They reach the session as one JSON text inside one
string literal, never as code, and their size is bounded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hrm_agent.environment import ExecutionResult
from hrm_agent.environment.base import Cell
from hrm_agent.errors import ConfigError
from hrm_agent.trajectory import SessionState, ToolStatus

__all__ = [
    "MAX_BYTES",
    "MAX_DATA_BYTES",
    "as_value",
    "refuse_large",
    "variables_cell",
    "without_variables",
]

MAX_BYTES = 512 * 1024
"""Maximum number of bytes of all variables of a session together, as ASCII JSON."""
MAX_DATA_BYTES = 256 * 1024
"""Maximum number of bytes of a task's data. The rest of `MAX_BYTES` is room for the task's text and
for results.
"""


_SILENT = ExecutionResult(ToolStatus.OK).digest
"""Digest of a cell that ends well without output."""


def variables_cell(variables: Mapping[str, Any]) -> Cell:
    """Cell that sets the variables. Raises `ConfigError` if they are not JSON, or too large."""
    text = refuse_large(variables)
    return Cell(f"globals().update(__import__('json').loads({text!r}))", _SILENT)


def refuse_large(variables: Mapping[str, Any], most: int = MAX_BYTES) -> str:
    """Variables as ASCII JSON. Raises `ConfigError` if they are not JSON, or too large."""
    try:
        text = json.dumps(variables)
    except (TypeError, ValueError, RecursionError) as error:
        names = ", ".join(map(repr, variables))
        raise ConfigError(
            f"The session's variables {names} are not JSON: {error}.", "Give plain values."
        ) from error
    if len(text) > most:
        sizes = ", ".join(f"{name} {len(json.dumps(value)):,}" for name, value in variables.items())
        raise ConfigError(
            f"A session's variables take {len(text):,} bytes as JSON ({sizes}), more than the"
            f" maximum of {most:,}.",
            "Give the task less data.",
        )
    return text


def without_variables(result: ExecutionResult, *, first: bool) -> ExecutionResult:
    """Result of a call in which the cell of variables is not counted, but only the session's calls.
    `first`: the call is the session's first.
    """
    changed = tuple(number - 1 for number in result.changed_cells if number > 1)
    found = result.session
    if first and found in (SessionState.REPLAYED, SessionState.KEPT):
        found = SessionState.NEW
    elif found is SessionState.DIFFERS and not changed:  # the variables could not be set
        found = SessionState.LOST
    return replace(result, session=found, changed_cells=changed)


def as_value(text: str) -> Any:
    """Value of a text as JSON, or else the text."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON value")
