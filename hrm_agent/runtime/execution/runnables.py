"""LangChain runnables other than graphs, run as graphs of one node: chains around a graph,
executors, managers.

Inside the node the runnable is unchanged. Its model and tool calls belong to the node, so they are
recorded, resumed and replayed. A graph among its steps is a subgraph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langgraph.channels.ephemeral_value import EphemeralValue
from langgraph.channels.last_value import LastValue
from langgraph.pregel import NodeBuilder, Pregel
from langgraph.pregel.protocol import PregelProtocol

from hrm_agent.langgraph_format import END, START
from hrm_agent.models.call_recording import plain

__all__ = ["graph_around", "is_runnable"]


def is_runnable(found: Any) -> bool:
    """True for a runnable that is not a graph (here or in another process), a model or a tool."""
    return isinstance(found, Runnable) and not isinstance(
        found, (PregelProtocol, BaseLanguageModel, BaseTool)
    )


def graph_around(runnable: Runnable[Any, Any]) -> Pregel[Any, Any, Any, Any]:
    """Graph with the runnable as its only node, under the runnable's name and with its input.

    Its state is the output. Messages are kept, and objects of other classes become JSON, since no
    schema declares which classes a record of it may be trusted with. The same object gives the same
    graph.
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
    runnable, name = key.it, key.it.get_name()
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
    except Exception:  # of a library
        return Any
    fields: dict[str, Any] = getattr(schema, "model_fields", {})
    if "root" not in fields:
        return schema if fields else Any
    declared = fields["root"].annotation
    return declared if isinstance(declared, type) else Any
