"""Agent that thinks, calls a tool, reads the result, and answers. It is plain LangGraph. Change it
as you like.

    START -> think -> tools -> think -> ... -> END

Its only special part is `policy()`, the chat model that a command names with `--policy`. So the
same graph runs with a small model on this machine, with a hosted model, with a script in a test,
and with the model that is being trained.
"""

from __future__ import annotations

from typing import Any

from hrm_agent.models import policy
from hrm_agent.tools import python
from langchain_core.messages import AIMessage, SystemMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

__all__ = ["graph"]

# The small policy that comes with hrm-agent was trained on this prompt. Larger models also follow
# other prompts.
PROMPT = (
    "Think in <reason></reason>. Compute with the python tool, one call at a time. "
    "Then give the final answer as <answer>\\boxed{...}</answer>."
)
# runs code in a sandbox; any LangChain tool works here, including your own `@tool` functions
TOOLS = [python]
MOST_TURNS = 8


async def think(state: MessagesState) -> dict[str, Any]:
    """Ask the model. It sees the conversation so far, and answers with text or a tool call."""
    model = policy().bind_tools(TOOLS)
    return {"messages": [await model.ainvoke([SystemMessage(PROMPT), *state["messages"]])]}


def after_thinking(state: MessagesState) -> str:
    """Next node: the tools if the model called a tool, else the end. After `MOST_TURNS` answers, it
    is the end in any case.
    """
    answer = state["messages"][-1]
    calls = isinstance(answer, AIMessage) and bool(answer.tool_calls)
    turns = sum(message.type == "ai" for message in state["messages"])
    return "tools" if calls and turns < MOST_TURNS else END


builder = StateGraph(MessagesState)
builder.add_node("think", think)
builder.add_node("tools", ToolNode(TOOLS))
builder.add_edge(START, "think")
builder.add_conditional_edges("think", after_thinking, ["tools", END])
builder.add_edge("tools", "think")
graph = builder.compile()
