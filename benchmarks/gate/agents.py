"""Agents whose last step has instructions that can be changed, as programs and as graphs.

`STRANGER` is a plain LangGraph agent without any code of this project: a plan, a tool call, a
conclusion. The two others are graphs of this package.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.gate.server import IMPROVED, SPOILT

__all__ = ["AGENTS", "CHANGES", "write_graph"]

CHANGES = {
    "unchanged": "",
    "improvement": f" {IMPROVED}",
    "fault": f" {SPOILT}",
    "wording": " Be brief and polite.",
}
"""Sentence that each change adds to the instructions of the last step."""
STRANGER = '''
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode


@tool
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


model = ChatOpenAI(model="small", max_retries=0, temperature=0, max_tokens=100)


async def plan(state: MessagesState):
    said = await model.ainvoke([SystemMessage("You are the planner."), *state["messages"]])
    return {"messages": [said]}


async def look(state: MessagesState):
    return {"messages": [await model.bind_tools([add]).ainvoke(state["messages"])]}


async def conclude(state: MessagesState):
    system = SystemMessage("Give the sum as a number.ADDED")
    return {"messages": [await model.ainvoke([system, *state["messages"]])]}


builder = StateGraph(MessagesState).add_node("plan", plan).add_node("look", look)
builder.add_node("tools", ToolNode([add])).add_node("conclude", conclude)
builder.add_edge(START, "plan").add_edge("plan", "look").add_edge("look", "tools")
graph = builder.add_edge("tools", "conclude").compile()
'''
TOOL_LOOP = """
from hrm_agent.graphs.parts.prompts import TOOL_LOOP_PROMPT
from hrm_agent.graphs.tool_loop import build_tool_loop

graph = build_tool_loop(TOOL_LOOP_PROMPT + "ADDED")
"""
REASONING = """
from hrm_agent.graphs.reasoning import agent

PROMPT = agent.SYNTHESIZER_PROMPT + "ADDED"
agent.SYNTHESIZER = agent.Role("synthesizer", PROMPT)
graph = agent.graph
"""
AGENTS = {"stranger": STRANGER, "tool_loop": TOOL_LOOP, "reasoning": REASONING}


def write_graph(path: Path, agent: str, change: str) -> None:
    """Write the file of an agent with a change, whose graph is the attribute `graph`."""
    path.write_text(AGENTS[agent].replace("ADDED", CHANGES[change]))
