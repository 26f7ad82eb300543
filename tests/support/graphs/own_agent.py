"""A graph as users write it: with its own chat model and LangGraph's prebuilt tool node, without
any code of this project.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two integers."""
    return a * b


class HostedModel(BaseChatModel):
    """Stands for a provider's model: asks for one tool call, then answers."""

    @property
    def _llm_type(self) -> str:
        return "hosted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self.bind(
            tools=[
                {"name": t.name, "input_schema": t.args_schema.model_json_schema()} for t in tools
            ]
        )

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        if messages[-1].type == "tool":
            message = AIMessage(f"It is {messages[-1].text}.")
        else:
            call = {
                "name": "multiply",
                "args": {"a": 6, "b": 7},
                "id": "call-1",
                "type": "tool_call",
            }
            message = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        raise NotImplementedError


model = HostedModel(disable_streaming=True).bind_tools([multiply])


def ask(state: MessagesState) -> dict[str, Any]:
    return {"messages": [model.invoke(state["messages"])]}


builder = StateGraph(MessagesState)
builder.add_node("ask", ask)
builder.add_node("tools", ToolNode([multiply]))
builder.add_edge(START, "ask")
builder.add_conditional_edges("ask", tools_condition)
builder.add_edge("tools", "ask")
graph = builder.compile()
