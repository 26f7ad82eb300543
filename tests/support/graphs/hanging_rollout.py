"""An agent whose second rollout of each group of a training hangs after its first reply, while
`HANGS` is set.

The other rollouts of the group end after it has begun to hang.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, MessagesState, StateGraph

from hrm_agent.models import policy

HANGS = "HRM_AGENT_TEST_HANGS"
hung: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
"""Group -> event that is set when its hanging rollout begins to hang."""


async def reason(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await policy().ainvoke(state["messages"])]}


async def wait(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
    del state
    group, _, sample = config["configurable"]["thread_id"].rpartition("/")
    if "/step-" in group and HANGS in os.environ:
        if sample == "1":
            hung[group].set()
            await asyncio.Event().wait()
        await hung[group].wait()
    return {}


builder = StateGraph(MessagesState)
builder.add_node("reason", reason)
builder.add_node("wait", wait)
builder.add_edge(START, "reason")
builder.add_edge("reason", "wait")
builder.add_edge("wait", END)
graph = builder.compile()
