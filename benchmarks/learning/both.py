"""Graph of both agents: a hash of the problem's text selects the tool loop or the four roles."""

from __future__ import annotations

from typing import Literal
from zlib import crc32

from langgraph.graph import END, START, StateGraph

from hrm_agent.graphs.reasoning import graph as reasoning
from hrm_agent.graphs.tool_loop import LoopState
from hrm_agent.graphs.tool_loop import graph as tool_loop

__all__ = ["graph"]


async def route(state: LoopState) -> Literal["tool_loop", "reasoning"]:
    """Select the agent of a problem. All rollouts of a problem get the same agent, since they are
    compared with each other.
    """
    return "reasoning" if crc32(state["messages"][0].text.encode()) % 2 else "tool_loop"


_builder = StateGraph(LoopState)
_builder.add_node("tool_loop", tool_loop)
_builder.add_node("reasoning", reasoning)
_builder.add_conditional_edges(START, route)
_builder.add_edge("tool_loop", END)
_builder.add_edge("reasoning", END)
graph = _builder.compile()
