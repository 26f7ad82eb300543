"""An agent whose tools take as long as a test wants; a test copies it into the folder in which the
agent runs.

A tool that begins notes this in the folder that `PLACE` names, and waits for a file `open` in that
folder.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph

from hrm_agent.models import policy
from hrm_agent.tools import run_tool_calls

_CALL = '<tool_call>{"name": "slow", "arguments": {"what": "%s"}}</tool_call>'
SCRIPT = (_CALL % "one" + _CALL % "two", "Both are done.")
PLACE = "slow_agent_place.txt"


@tool
def slow(what: str) -> str:
    """Do something slowly."""
    place = Path(Path(PLACE).read_text())
    with (place / "begun.txt").open("a") as begun:
        print(what, os.getpid(), file=begun)
    while not (place / "open").exists():
        time.sleep(0.01)
    return f"{what} by {os.getpid()}"


async def think(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await policy().bind_tools([slow]).ainvoke(state["messages"])]}


async def act(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
    return {"messages": await run_tool_calls(state["messages"][-1], [slow], config)}  # type: ignore[arg-type]


def on(state: MessagesState) -> str:
    return "act" if getattr(state["messages"][-1], "tool_calls", ()) else END


graph = (
    StateGraph(MessagesState)
    .add_node("think", think)
    .add_node("act", act)
    .add_edge(START, "think")
    .add_conditional_edges("think", on, ["act", END])
    .add_edge("act", "think")
    .compile()
)
