"""Permission to instantiate types of the user that the states of threads may hold.

A stored value names its type, and reading it imports a module. So a type is read only if the user
names it (`--allow`), or names a graph whose state declares it (`--graph`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hrm_agent.import_by_name import types_by_name

if TYPE_CHECKING:
    from langgraph.pregel import Pregel

    from hrm_agent.cli.common.arguments import Arguments, Parser

__all__ = ["add_own_types", "allowed_names", "named_graph"]


def add_own_types(parser: Parser, *, graph: bool = False) -> None:
    """Add `--allow`, and `--graph` if `graph` is set."""
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="MODULE:TYPE",
        help="a type of your own that the state may hold; repeatable",
    )
    if graph:
        parser.add_argument(
            "--graph",
            metavar="MODULE:GRAPH",
            help="a graph whose state declares the types, and that knows what is next",
        )


def allowed_names(arguments: Arguments) -> list[str]:
    """Names given with `--allow`. Raises `ConfigError` for a name that is not a type in this
    environment, since values of the type would be lost.
    """
    return types_by_name(arguments.allow)


def named_graph(arguments: Arguments) -> Pregel[Any, Any, Any, Any] | None:
    """Graph given with `--graph`, loaded (None if not given). Raises `GraphError`."""
    if arguments.graph is None:
        return None
    # this imports LangGraph, which a list of runs does not need
    from hrm_agent.runtime.execution.loading import load_graph

    return load_graph(arguments.graph)
