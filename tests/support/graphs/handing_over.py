"""A lead agent that hands over to other agents by a tool, as in langgraph-supervisor and
langgraph-swarm.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Annotated, Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode
from langgraph.types import Command


def tool_call(name: str, **args: Any) -> dict[str, Any]:
    """Tool call with a fresh id each time, as providers name them."""
    return {"name": name, "args": args, "id": f"call_{uuid.uuid4().hex[:24]}", "type": "tool_call"}


class Lead(BaseChatModel):
    """Model that adds, hands over, adds again and hands over again, then ends."""

    @property
    def _llm_type(self) -> str:
        return "lead"

    def _generate(self, messages: Sequence[AnyMessage], *_: Any, **__: Any) -> ChatResult:
        done = [message.name for message in messages if isinstance(message, ToolMessage)]
        turns = done.count("back")
        wanted = (
            [tool_call("add", a=turns, b=2)] if len(done) == 3 * turns else [tool_call("hand_over")]
        )
        message = AIMessage("Done.") if turns == 2 else AIMessage("", tool_calls=wanted)
        return ChatResult(generations=[ChatGeneration(message=message)])


class Helper(BaseChatModel):
    @property
    def _llm_type(self) -> str:
        return "helper"

    def _generate(self, messages: Sequence[AnyMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(
            generations=[ChatGeneration(message=AIMessage(f"helped after {len(messages)}"))]
        )


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
def hand_over(
    state: Annotated[dict[str, Any], InjectedState],
    tool_call_id: Annotated[str, InjectedToolCallId],
) -> Command[Any]:
    """Returns the whole conversation to the graph around."""
    told = ToolMessage("Transferred.", name="hand_over", tool_call_id=tool_call_id)
    update = {**state, "messages": [*state["messages"], told]}
    return Command(goto="helper", graph=Command.PARENT, update=update)


def ask(state: MessagesState) -> dict[str, Any]:
    return {"messages": [Lead().invoke(state["messages"])]}


def more(state: MessagesState) -> str:
    last: Any = state["messages"][-1]
    return "tools" if last.tool_calls else END


def helper(state: MessagesState) -> dict[str, Any]:
    """Hand back under a drawn id."""
    answer, own = Helper().invoke(state["messages"]), str(uuid.uuid4())
    back = AIMessage("Back.", tool_calls=[{"name": "back", "args": {}, "id": own}])
    return {"messages": [answer, back, ToolMessage("Back.", name="back", tool_call_id=own)]}


agent = StateGraph(MessagesState).add_node("ask", ask).add_node("tools", ToolNode([add, hand_over]))
agent = agent.add_edge(START, "ask").add_conditional_edges("ask", more).add_edge("tools", "ask")
builder = StateGraph(MessagesState).add_node("lead", agent.compile(), destinations=("helper", END))
builder = builder.add_node("helper", helper).add_edge(START, "lead").add_edge("helper", "lead")
team = builder.compile()
