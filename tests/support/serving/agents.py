"""Graphs that a server serves beside the built-in ones."""

from __future__ import annotations

from typing import Annotated, Any

from langchain_core.messages import AIMessage, AnyMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import interrupt
from typing_extensions import TypedDict


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def _ask(state: State) -> dict[str, Any]:
    colour = interrupt("Which colour?")
    return {"messages": [AIMessage(f"<answer>{colour} it is</answer>")]}


def _break(state: State) -> dict[str, Any]:
    raise ValueError("no such thing")


def _alone(node: Any) -> Any:
    return (
        StateGraph(State)
        .add_node("node", node)
        .add_edge(START, "node")
        .add_edge("node", END)
        .compile()
    )


asking = _alone(_ask)
broken = _alone(_break)
