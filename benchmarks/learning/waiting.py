"""Tool loop like an agent with slow tools: each rollout waits for some seconds without using a
processor.
"""

from __future__ import annotations

import asyncio
from typing import Any

from langgraph.graph import END, START, MessagesState, StateGraph

from hrm_agent.graphs.tool_loop import graph as tool_loop

SECONDS = 10.0


async def wait(state: MessagesState) -> dict[str, Any]:
    del state
    await asyncio.sleep(SECONDS)
    return {}


builder = StateGraph(MessagesState)
builder.add_node("wait", wait)
builder.add_node("loop", tool_loop)
builder.add_edge(START, "wait")
builder.add_edge("wait", "loop")
builder.add_edge("loop", END)
graph = builder.compile()
