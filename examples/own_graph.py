"""Custom LangGraph agent, recorded by every command and trained by `hrm-agent train rl`.

    hrm-agent run "A farm keeps 23 hens and 45 cows. How many legs do they have?" --graph examples.own_graph:graph
    hrm-agent train rl --graph examples.own_graph:graph --steps 5

The graph is plain LangGraph, except for `policy()`, which is the chat model of the policy that the
command names. On two cores the first command takes some 10 seconds, and the training a minute.
"""

from __future__ import annotations

from typing import Any

from langchain_core.messages import SystemMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from hrm_agent.graphs.parts.prompts import TOOL_LOOP_PROMPT
from hrm_agent.models import policy
from hrm_agent.tools import python


async def think(state: MessagesState) -> dict[str, Any]:
    model = policy().bind_tools([python])
    return {
        "messages": [await model.ainvoke([SystemMessage(TOOL_LOOP_PROMPT), *state["messages"]])]
    }


builder = StateGraph(MessagesState)
builder.add_node("think", think)
builder.add_node("tools", ToolNode([python]))
builder.add_edge(START, "think")
builder.add_conditional_edges("think", tools_condition)
builder.add_edge("tools", "think")
graph = builder.compile()
