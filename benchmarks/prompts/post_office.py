"""Graph of two roles with a tool, whose rules its prompts do not name. It runs as it is, and is the
agent of the benchmark.
"""

from __future__ import annotations

from typing import Any

from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from hrm_agent import Prompt
from hrm_agent.models import policy

CLERK = Prompt("clerk", "You are the clerk. Look up the price of the item with the tool.")
WRITER = Prompt("writer", "You are the writer. Answer the customer with the price.")


@tool
def price(kind: str, weight: float, zone: str) -> str:
    """Price of an item. `weight` as a number, `zone` by its name."""
    if kind == "letter" and weight < 1:
        raise ValueError("the weight of a letter is in grams")
    if zone == "Harbour":
        raise ValueError("the zone Harbour is called H1 here")
    return str(round(weight / 100 if kind == "letter" else weight * 2) + 3 * len(zone))


async def clerk(state: MessagesState) -> dict[str, Any]:
    """Ask for the price."""
    model = policy().bind_tools([price])
    return {"messages": [await model.ainvoke([SystemMessage(CLERK), *state["messages"]])]}


async def writer(state: MessagesState) -> dict[str, Any]:
    """Answer from the price."""
    task = state["messages"][0].text
    request = HumanMessage(f"Customer: {task}\nClerk: {state['messages'][-1].text}")
    return {"messages": [await policy().ainvoke([SystemMessage(WRITER), request])]}


def after_clerk(state: MessagesState) -> str:
    """Next node."""
    last = state["messages"][-1]
    asked = any(isinstance(each, ToolMessage) for each in state["messages"])
    return "tools" if getattr(last, "tool_calls", None) and not asked else "writer"


builder = StateGraph(MessagesState).add_node("clerk", clerk).add_node("writer", writer)
builder.add_node("tools", ToolNode([price], handle_tool_errors=True))
builder.add_edge(START, "clerk").add_conditional_edges("clerk", after_clerk, ["tools", "writer"])
graph = builder.add_edge("tools", "clerk").compile()
