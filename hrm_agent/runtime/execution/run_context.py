"""The run context: the options that a graph is given beside its input, in the form that it declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from hrm_agent.errors import ConfigError, nearest
from hrm_agent.runtime.execution.conversation import fields_of
from hrm_agent.runtime.execution.loading import Graph

__all__ = ["CONTEXT", "run_context"]

CONTEXT = "hrm_agent_context"
"""Key in the metadata of checkpoints: the run context as JSON, since LangGraph stores none and a replay needs it."""


def run_context(graph: Graph, given: Mapping[str, Any], name: str) -> Any:
    """The run context as the graph, known by `name`, declares it; an option that it does not know is an error."""
    schema = graph.context_schema
    options = fields_of(schema) if schema is not None else ()
    for option in given:
        if option not in options:
            raise ConfigError(
                f"Graph {name!r} has no option {option!r}. {nearest(option, options)}".strip(),
                f"Its options: {', '.join(options) or 'none'}.",
            )
    if schema is None:
        return None
    try:
        return schema(**given) if is_dataclass(schema) else dict(given)
    except (TypeError, ValueError, AttributeError) as error:  # a list where a mapping is wanted, say
        raise ConfigError(f"An option of graph {name!r} has a value of the wrong kind: {error}.") from error
