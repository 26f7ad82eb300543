"""A user's graph that asks its model, then a person."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from tests.support.graphs.own_agent import HostedModel


def ask(state: MessagesState) -> dict[str, Any]:
    HostedModel(disable_streaming=True).invoke([HumanMessage("draft")])
    return {"messages": [AIMessage(f"You said {interrupt('fine?')}.")]}


builder = StateGraph(MessagesState)
builder.add_node("ask", ask)
builder.add_edge(START, "ask")
graph = builder.compile()
remembering = builder.compile(checkpointer=InMemorySaver())


def made() -> Any:
    """Graph of the same node that no module holds."""
    twin = StateGraph(MessagesState)
    twin.add_node("ask", ask)
    twin.add_edge(START, "ask")
    return twin.compile()
