"""A graph with two parallel branches that are subgraphs. The beginning of each node is logged
outside the process.

The left branch has checkpoints of its own (`checkpointer=True`) and is itself a node. The right
branch is called in a node and inherits its parent's checkpointer. Both ask the policy and run its
tool calls; a last node adds their results.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict

from hrm_agent.models import policy
from hrm_agent.tools import python, run_tool_calls


class Log:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())


class WorkerState(TypedDict):
    problem: str
    talk: Annotated[list[AnyMessage], add_messages]


class TeamState(MessagesState):
    problem: str
    talk: Annotated[list[AnyMessage], add_messages]
    """Messages of the left branch, which shares its parent's state."""
    right: str


nodes: list[Log] = []
"""Logs. The last one is that of this process."""


def note(config: RunnableConfig) -> None:
    """Log that a node begins: its thread, the names of the graphs around it, its step."""
    facts = config.get("metadata", {})
    place = "/".join(
        part.partition(":")[0] for part in facts["langgraph_checkpoint_ns"].split("|")[:-1]
    )
    nodes[-1].write(f"node {facts['thread_id']} {place or '-'} {facts['langgraph_step']}")


def build_worker(factor: int, **options: Any) -> Any:
    async def ask(state: WorkerState, config: RunnableConfig) -> dict[str, Any]:
        note(config)
        begin = (
            [HumanMessage(f"What is {state['problem']} * {factor}?")]
            if not state.get("talk")
            else []
        )
        answer = (
            await policy()
            .bind_tools([python])
            .ainvoke([SystemMessage("work"), *begin, *state.get("talk", ())])
        )
        return {"talk": [*begin, answer]}

    async def act(state: WorkerState, config: RunnableConfig) -> dict[str, Any]:
        note(config)
        last = state["talk"][-1]
        assert isinstance(last, AIMessage)
        return {"talk": await run_tool_calls(last, [python], config)}

    builder = StateGraph(WorkerState)
    builder.add_node("ask", ask)
    builder.add_node("act", act)
    builder.add_edge(START, "ask")
    builder.add_conditional_edges(
        "ask", lambda state: "act" if state["talk"][-1].tool_calls else END, ["act", END]
    )
    builder.add_edge("act", "ask")
    return builder.compile(**options)


right_worker = build_worker(17)


async def begin(state: TeamState, config: RunnableConfig) -> dict[str, Any]:
    note(config)
    return {"problem": state["messages"][-1].text.partition("Team ")[2]}


async def right(state: TeamState, config: RunnableConfig) -> dict[str, Any]:
    note(config)
    done = await right_worker.ainvoke({"problem": state["problem"]})
    return {"right": done["talk"][-1].text}


async def add(state: TeamState, config: RunnableConfig) -> dict[str, Any]:
    note(config)
    request = f"Add {state['problem']}: {state['talk'][-1].text} and {state['right']}"
    return {"messages": [await policy().ainvoke([SystemMessage("add"), HumanMessage(request)])]}


builder = StateGraph(TeamState)
builder.add_node("begin", begin)
builder.add_node("left", build_worker(13, checkpointer=True))
builder.add_node("right", right)
builder.add_node("add", add)
builder.add_edge(START, "begin")
builder.add_edge("begin", "left")
builder.add_edge("begin", "right")
builder.add_edge(["left", "right"], "add")
builder.add_edge("add", END)
team = builder.compile()
