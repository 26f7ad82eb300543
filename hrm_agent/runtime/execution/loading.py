"""Graphs by name: the built-in ones, and a user's own as `package.module:attribute` or `./file.py:attribute`."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from hrm_agent.errors import GraphError, nearest
from hrm_agent.import_by_name import import_by_name, search_in

__all__ = ["BUILTIN_GRAPHS", "load_graph"]

BUILTIN_GRAPHS = {
    "tool_loop": "hrm_agent.graphs.tool_loop:graph",
    "reasoning": "hrm_agent.graphs.reasoning.agent:graph",
    "research": "hrm_agent.graphs.research.agent:graph",
}
"""As langgraph.json names them."""
_FORMER_MODULES = {
    "graphs.choice": "hrm_agent.runtime.selection.choice",
    "graphs.reasoning": "hrm_agent.graphs.reasoning.agent",
    "graphs.research": "hrm_agent.graphs.research.agent",
    "graphs.tool_loop": "hrm_agent.graphs.tool_loop",
}
"""Where graphs are that records of version 0.1's beginnings name by another module. A module of the user goes first."""


def load_graph(name: str) -> Pregel[Any, Any, Any, Any]:
    """The compiled graph that `name` names, loaded once; a `StateGraph` is compiled. Raises `GraphError`."""
    return _load(name, str(Path.cwd()))


@lru_cache(maxsize=32)
def _load(name: str, folder: str) -> Pregel[Any, Any, Any, Any]:
    """`folder` is where the command was typed: names are relative to it."""
    target = BUILTIN_GRAPHS.get(name, name)
    module_name, colon, attribute = target.rpartition(":")
    if not colon or not module_name or not attribute:
        raise GraphError(
            f"There is no graph {name!r}. {nearest(name, BUILTIN_GRAPHS)}".strip(),
            f"Built in: {', '.join(BUILTIN_GRAPHS)}. Name your own as package.module:attribute.",
        )
    module = _import(module_name, name, folder)
    found: Any = getattr(module, attribute, None)
    if isinstance(found, StateGraph):
        found = found.compile()  # pyright: ignore[reportUnknownMemberType]
    if not isinstance(found, Pregel):
        known = [key for key, value in vars(module).items() if isinstance(value, (Pregel, StateGraph))]
        what = f"is {type(found).__name__}, not a LangGraph graph" if found is not None else "does not exist"
        raise GraphError(
            f"{attribute!r} in {module_name} {what}.", f"Graphs found there: {', '.join(known) or 'none'}."
        )
    return found


def _import(module_name: str, name: str, folder: str) -> ModuleType:
    search_in(folder)
    try:
        if module_name in _FORMER_MODULES and not _is_there(module_name):
            module_name = _FORMER_MODULES[module_name]
        return import_by_name(module_name, folder)
    except Exception as error:
        trial = f"python {module_name}" if module_name.endswith(".py") else f"python -c 'import {module_name}'"
        raise GraphError(
            f"Graph {name!r} does not import: {type(error).__name__}: {error}.",
            f"Try `{trial}` in this folder; --debug shows the traceback.",
        ) from error


def _is_there(module_name: str) -> bool:
    try:
        return importlib.util.find_spec(module_name) is not None
    except ImportError:  # of a package around it
        return False
