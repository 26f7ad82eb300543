"""Variables that a session of the Python tool begins with: values of the task, which code can use
without copying them.

They are part of what defines the session, like its recorded calls, but no call: nobody asked for
them, so they have no record and count for nobody. They are made by a cell before all others,
wherever the session is built or built again. What they are follows from the tool, which a graph
makes of its state: a resumed run and a fork begin with the same.

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
"""Of all variables of a session together, as ASCII JSON."""
MAX_DATA_BYTES = 256 * 1024
"""Of what a task comes with, which leaves room for its text and for results."""


_SILENT = ExecutionResult(ToolStatus.OK).digest
"""Of a cell that shows nothing and ends well."""


def variables_cell(variables: Mapping[str, Any]) -> Cell:
    """The cell that sets them. Raises `ConfigError` for what is not JSON,
    and for too much of it.
    """
    text = refuse_large(variables)
    return Cell(f"globals().update(__import__('json').loads({text!r}))", _SILENT)


def refuse_large(variables: Mapping[str, Any], most: int = MAX_BYTES) -> str:
    """The variables as ASCII JSON. Raises `ConfigError` for what is not JSON, and for too much of
    it.
    """
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
            f"A session's variables take {len(text):,} bytes as JSON ({sizes}); {most:,} is the"
            " most.",
            "Give the task less data.",
        )
    return text


def without_variables(result: ExecutionResult, *, first: bool) -> ExecutionResult:
    """The outcome of a call as it is told of the session's calls alone. `first`: there was none
    before it.
    """
    changed = tuple(number - 1 for number in result.changed_cells if number > 1)
    found = result.session
    if first and found in (SessionState.REPLAYED, SessionState.KEPT):
        found = SessionState.NEW
    elif found is SessionState.DIFFERS and not changed:  # the variables could not be set
        found = SessionState.LOST
    return replace(result, session=found, changed_cells=changed)


def as_value(text: str) -> Any:
    """What a text says as JSON; else the text."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON value")
