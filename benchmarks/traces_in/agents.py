"""Agents as their authors would write them: stock LangGraph and LangChain, and nothing of this
project.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from typing import Annotated, Any

from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from typing_extensions import TypedDict

__all__ = ["AGENTS", "ask"]

QUESTION = "How much is 6 times 7.5? Über den Preis: 3 €."


def _model(**options: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model="gpt-test", base_url=os.environ["OPENAI_BASE_URL"], api_key="none", **options
    )


@tool
def multiply(a: float, b: float, note: str = "") -> str:
    """Multiply two numbers."""
    return f"{a * b} ({note})"


@tool("multiply")
def broken(a: float, b: float, note: str = "") -> str:
    """Multiply two numbers."""
    raise ZeroDivisionError(f"no product of {a} and {b}")


def tool_agent() -> Any:
    """LangChain's agent with one tool."""
    from langchain.agents import create_agent

    return create_agent(
        _model(temperature=0.5, max_tokens=200), [multiply], system_prompt="Use tools.", name="sums"
    )


def two_roles() -> Any:
    """Planner, then a writer that sees the plan."""

    def plan(state: MessagesState) -> dict[str, Any]:
        sent = [SystemMessage("Write a plan."), *state["messages"]]
        return {"messages": [_model().invoke(sent)]}

    def write(state: MessagesState) -> dict[str, Any]:
        sent = [SystemMessage("Follow the plan."), *state["messages"], HumanMessage("Now answer.")]
        return {"messages": [_model(temperature=0).invoke(sent)]}

    builder = StateGraph(MessagesState).add_node("plan", plan).add_node("write", write)
    return builder.add_edge(START, "plan").add_edge("plan", "write").compile()


class _Solved(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: Annotated[list[str], operator.add]


def parallel_tools() -> Any:
    """Two solvers at the same time; one calls several tools in one answer."""

    def think(state: _Solved) -> dict[str, Any]:
        return {"messages": [_model().bind_tools([multiply]).invoke(state["messages"])]}

    def doubt(state: _Solved) -> dict[str, Any]:
        sent = [SystemMessage("Doubt it."), *state["messages"][:1]]
        return {"notes": [_model().invoke(sent).text]}

    builder = StateGraph(_Solved).add_node("think", think).add_node("doubt", doubt)
    builder.add_node("tools", ToolNode([multiply]))
    builder.add_edge(START, "think").add_edge(START, "doubt").add_edge("doubt", END)
    return (
        builder.add_conditional_edges("think", tools_condition).add_edge("tools", "think").compile()
    )


def failing_tool() -> Any:
    """Tool that raises; its error is shown to the model."""

    def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [_model().bind_tools([broken]).invoke(state["messages"])]}

    builder = StateGraph(MessagesState).add_node("think", think)
    builder.add_node("tools", ToolNode([broken], handle_tool_errors=True))
    builder.add_edge(START, "think").add_conditional_edges("think", tools_condition)
    return builder.add_edge("tools", "think").compile()


def streaming() -> Any:
    """Model that is read as a stream, in an asynchronous node, with a tool."""

    async def think(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        whole: Any = None
        model = _model(stream_usage=True).bind_tools([multiply])
        async for chunk in model.astream(state["messages"], config):
            whole = chunk if whole is None else whole + chunk
        return {"messages": [whole]}

    builder = StateGraph(MessagesState).add_node("think", think)
    builder.add_node("tools", ToolNode([multiply]))
    builder.add_edge(START, "think").add_conditional_edges("think", tools_condition)
    return builder.add_edge("tools", "think").compile()


AGENTS: dict[str, Callable[[], Any]] = {
    "tool_agent": tool_agent,
    "two_roles": two_roles,
    "parallel_tools": parallel_tools,
    "failing_tool": failing_tool,
    "streaming": streaming,
}
"""Agent by name."""


async def ask(name: str, **config: Any) -> Any:
    """Ask an agent the question."""
    state: Any = {"messages": [HumanMessage(QUESTION)]}
    return await AGENTS[name]().ainvoke(state, config)
