"""Graphs by name: the built-in ones, and a user's own as `package.module:attribute` or
`./file.py:attribute`.

As in langgraph.json, an attribute can be a compiled graph, a `StateGraph`, or a factory: a function
of the config or without parameters, async or not, that returns a graph or a context manager around
one. Any other LangChain runnable is run as a graph of one node. In Python each of these can be
passed in place of a name.

Inside that node a runnable (a chain around a graph, an executor, a manager) is unchanged. Its model
and tool calls belong to the node, so they are recorded, resumed and replayed. A graph among its
steps is a subgraph.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langgraph.channels.ephemeral_value import EphemeralValue
from langgraph.channels.last_value import LastValue
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import NodeBuilder, Pregel
from langgraph.pregel.protocol import PregelProtocol

from hrm_agent.basics.async_bridge import run_sync
from hrm_agent.errors import ConfigError, GraphError, HrmError, nearest
from hrm_agent.import_by_name import NoFileError, import_by_name, search_in
from hrm_agent.langgraph_format import END, START, TOOL_NODE, await_missing_checkpoints
from hrm_agent.models.call_recording import plain
from hrm_agent.runtime.execution.builtin_graphs import BUILTIN_GRAPHS

__all__ = [
    "BUILTIN_GRAPHS",
    "Graph",
    "graph_around",
    "is_runnable",
    "load_graph",
    "opened_graph",
    "refuse_other_roles",
    "unnamed",
]


def is_runnable(found: Any) -> bool:
    """True for a runnable that is not a graph (here or in another process), a model or a tool."""
    return isinstance(found, Runnable) and not isinstance(
        found, (PregelProtocol, BaseLanguageModel, BaseTool)
    )


def graph_around(runnable: Runnable[Any, Any]) -> Pregel[Any, Any, Any, Any]:
    """Graph with the runnable as its only node, under the runnable's name and with its input.

    The graph's state is the runnable's output. Messages are kept, and objects of other classes
    become JSON, since no schema declares which classes may be loaded from a record of it. The same
    runnable gives the same graph.
    """
    return _around(_Itself(runnable))


class _Itself:
    """Key by identity, since many runnables cannot be hashed."""

    def __init__(self, it: Runnable[Any, Any]) -> None:
        self.it = it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.it is other.it

    def __hash__(self) -> int:
        return id(self.it)


@lru_cache(maxsize=32)
def _around(key: _Itself) -> Pregel[Any, Any, Any, Any]:
    runnable = key.it
    name = key.it.get_name()
    node = NodeBuilder().subscribe_only(START).do(runnable).write_to(**{END: _stored})
    return Pregel(
        nodes={name: node},
        channels={START: EphemeralValue(_input_type(runnable)), END: LastValue(Any, END)},
        input_channels=START,
        output_channels=END,
        stream_channels=END,
        stream_mode="updates",
        name=name,
    )


def _stored(value: Any) -> Any:
    if isinstance(value, BaseMessage):
        return value
    if isinstance(value, Mapping):
        return {str(key): _stored(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_stored(item) for item in cast("Sequence[Any]", value)]
    return plain(value)


def _input_type(runnable: Runnable[Any, Any]) -> Any:
    """Class with the fields of the input if the runnable declares one, else Any."""
    try:
        schema = runnable.get_input_schema()
    except Exception:  # a library may raise any error
        return Any
    fields: dict[str, Any] = getattr(schema, "model_fields", {})
    if "root" not in fields:
        return schema if fields else Any
    declared = fields["root"].annotation
    return declared if isinstance(declared, type) else Any


Graph = Pregel[Any, Any, Any, Any]

_FORMER_MODULES = {
    "graphs.choice": "hrm_agent.runtime.selection.choice",
    "graphs.reasoning": "hrm_agent.graphs.reasoning.agent",
    "graphs.research": "hrm_agent.graphs.research.agent",
    "graphs.tool_loop": "hrm_agent.graphs.tool_loop",
}
"""Module name in records of early 0.1 versions -> current module of the graph. A module of the user
has priority.
"""


def unnamed(name: str) -> str:
    """Recorded name of a graph that no imported module holds: its own `name` in parentheses, which
    cannot be loaded.
    """
    return f"({name})"


def load_graph(graph: Any, configurable: Mapping[str, Any] | None = None) -> Graph:
    """Compiled graph of a name, a graph object or a factory. Raises `GraphError`.

    Each graph is made once. A graph from a factory is only for inspection: a context around it is
    closed when this function returns. `configurable`: the factory's `config["configurable"]`.
    """
    found = _found(graph)
    if isinstance(found, Pregel):
        return found
    return _looked_at(
        found, _label(graph), json.dumps(dict(configurable or {}), sort_keys=True, default=str)
    )


_NEARLY = 0.8
"""Similarity of two names from which one counts as a misspelling of the other."""


def refuse_other_roles(
    roles: Sequence[str], key: str, graphs: Sequence[Any], configurable: Mapping[str, Any]
) -> None:
    """Raise `ConfigError` if one of `roles`, the value of the key `key`, is not a node of one of
    the graphs.

    A graph of another kind (a functional workflow) does not list its nodes, so that no role is
    refused. An agent with tools does not list the sub-agents behind them, so that only a role is
    refused that is spelt nearly as a node.
    """
    from langgraph.prebuilt import ToolNode

    known: list[str] = []
    may_be_agent = False
    for graph in graphs if roles else ():
        found = load_graph(graph, configurable)
        if not isinstance(found, CompiledStateGraph):
            return
        tools = found.nodes.get(TOOL_NODE)
        may_be_agent |= tools is not None and isinstance(tools.bound, ToolNode)
        known += [name for name in found.nodes if name != START and name not in known]
    for role in (role for role in roles if role not in known):
        if may_be_agent and not get_close_matches(role, known, cutoff=_NEARLY):
            continue
        named = " or ".join(_label(graph) for graph in graphs)
        raise ConfigError(
            f"{key} names {role!r}, and the graph {named} has no such node."
            f" {nearest(role, known)}".strip(),
            f"It has {', '.join(known)}.",
        )


@asynccontextmanager
async def opened_graph(
    graph: Any, configurable: Mapping[str, Any] | None = None
) -> AsyncGenerator[Graph]:
    """Open the compiled graph to run it, inside the context that its factory opens around it."""
    found = _found(graph)
    if isinstance(found, Pregel):
        yield found
    else:
        async with AsyncExitStack() as stack:
            yield await _made_by(found, dict(configurable or {}), _label(graph), stack)


def _found(graph: Any) -> Any:
    """Compiled graph or factory."""
    await_missing_checkpoints()
    if isinstance(graph, str):
        return _load(graph, str(Path.cwd()))
    return _compiled(graph)


def _label(graph: Any) -> str:
    return (
        graph
        if isinstance(graph, str)
        else str(getattr(graph, "__qualname__", type(graph).__name__))
    )


def _compiled(found: Any) -> Any:
    """Compiled graph or factory. Raises `GraphError` for any other object."""
    if isinstance(found, StateGraph):
        return _compiled_builder(found)
    if is_runnable(found):
        return graph_around(found)
    if isinstance(found, Pregel) or _is_factory(found):
        return found  # pyright: ignore[reportUnknownVariableType]
    raise GraphError(
        f"{type(found).__name__} is not a LangGraph graph.",
        "Give a graph, a factory of one, or its module:attribute.",
    )


@lru_cache(maxsize=32)
def _compiled_builder(found: StateGraph[Any, Any, Any, Any]) -> Graph:
    """Compile a builder, once for all callers."""
    return found.compile()  # pyright: ignore[reportUnknownMemberType]


def _is_factory(found: Any) -> bool:
    return inspect.isroutine(found) or isinstance(found, functools.partial)


@lru_cache(maxsize=32)
def _looked_at(factory: Any, label: str, configurable: str) -> Graph:
    async def look() -> Graph:
        async with AsyncExitStack() as stack:
            return await _made_by(factory, json.loads(configurable), label, stack)

    return run_sync(look())


async def _made_by(
    factory: Any, configurable: dict[str, Any], label: str, stack: AsyncExitStack
) -> Graph:
    try:
        parameters = list(inspect.signature(factory).parameters.values())
        needed = [
            each
            for each in parameters
            if each.default is each.empty and each.kind < each.VAR_POSITIONAL
        ]
        if len(needed) > 1 or any(each.name == "runtime" for each in needed):
            names = ", ".join(each.name for each in needed)
            raise GraphError(
                f"The graph factory {label} takes ({names}), but is called with a config only.",
                "Write a factory that takes a config, or nothing.",
            )
        takes_config = bool(needed) or bool(parameters and parameters[0].name == "config")
        made = factory({"configurable": configurable}) if takes_config else factory()
        if inspect.isawaitable(made):
            made = await made
        if hasattr(made, "__aenter__"):
            made = await stack.enter_async_context(made)
        elif hasattr(made, "__enter__"):
            made = stack.enter_context(made)
    except HrmError:
        raise
    except Exception as error:
        raise GraphError(
            f"The graph factory {label} raised {type(error).__name__}: {error}.",
            "Give the values that it reads from config['configurable'] by --config KEY=VALUE.",
        ) from error
    graph = _compiled(made) if isinstance(made, StateGraph) or is_runnable(made) else made
    if not isinstance(graph, Pregel):
        raise GraphError(
            f"The graph factory {label} returns {type(made).__name__}, not a LangGraph graph."
        )
    return graph


@lru_cache(maxsize=32)
def _load(name: str, folder: str) -> Any:
    """Load a graph by name. `folder`: folder of the command, to which names are relative."""
    target = BUILTIN_GRAPHS.get(name, name)
    module_name, colon, attribute = target.rpartition(":")
    if name.startswith("("):
        raise GraphError(
            f"The graph {name} cannot be loaded, since it has no name: in the recorded program, no"
            " module held it in an attribute.",
            "Name a graph with the same nodes: --graph package.module:attribute.",
        )
    if not colon or not module_name or not attribute:
        raise GraphError(
            f"There is no graph {name!r}. {nearest(name, BUILTIN_GRAPHS)}".strip(),
            f"Built in: {', '.join(BUILTIN_GRAPHS)}. Name your own as package.module:attribute, or "
            "./file.py:attribute.",
        )
    module = _import(module_name, name, folder)
    found: Any = getattr(module, attribute, None)
    if not (isinstance(found, (Pregel, StateGraph)) or _is_factory(found) or is_runnable(found)):
        known = [
            key for key, value in vars(module).items() if isinstance(value, (Pregel, StateGraph))
        ]
        what = (
            f"is {type(found).__name__}, not a LangGraph graph"
            if found is not None
            else "does not exist"
        )
        raise GraphError(
            f"{attribute!r} in {module_name} {what}.",
            f"Graphs found there: {', '.join(known) or 'none'}.",
        )
    return _compiled(found)


def _import(module_name: str, name: str, folder: str) -> ModuleType:
    search_in(folder)
    try:
        if module_name in _FORMER_MODULES and not _is_there(module_name):
            module_name = _FORMER_MODULES[module_name]
        return import_by_name(module_name, folder)
    except NoFileError as error:
        raise GraphError(error.message, error.hint) from None
    except (Exception, SystemExit) as error:
        trial = (
            f"python {module_name}"
            if module_name.endswith(".py")
            else f"python -c 'import {module_name}'"
        )
        raise GraphError(
            f"Graph {name!r} does not import: {type(error).__name__}: {error}.",
            f"Try `{trial}` in this folder; --debug shows the traceback.",
        ) from error


def _is_there(module_name: str) -> bool:
    try:
        return importlib.util.find_spec(module_name) is not None
    except ImportError:  # of a package around the module
        return False
