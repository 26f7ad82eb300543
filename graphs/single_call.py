"""Single call: the model is asked once, as published evaluations ask.

    START -> ask -> END

There is no system turn but the one that the caller gives. The tools of the input are offered and
not run: the calls in the answer are the result. In a conversation each turn is one call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NotRequired

from langchain_core.messages import AnyMessage, SystemMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime

# before Python 3.12, LangGraph's JSON schemas need the TypedDict of typing_extensions
from typing_extensions import TypedDict

from hrm_agent.models import policy, was_cut
from hrm_agent.trajectory import StopReason

__all__ = ["AskOptions", "CallState", "graph"]


@dataclass(frozen=True)
class AskOptions:
    """Options of the call, passed as LangGraph's run context."""

    system: str = ""
    """System turn (empty: none)."""
    model: str | None = None
    """Model string (None: the current policy)."""
    temperature: float | None = None
    """Sampling temperature (None: that of the policy)."""


class CallState(TypedDict):
    """State: the conversation, and the tools that the model may call."""

    messages: Annotated[list[AnyMessage], add_messages]
    """Conversation: the task and the answer."""
    tools: NotRequired[list[dict[str, Any]]]
    """Tools to offer, in OpenAI's form."""
    stop_reason: NotRequired[str | None]
    """`StopReason` as plain text."""


async def ask(state: CallState, runtime: Runtime[AskOptions]) -> dict[str, Any]:
    """Ask the model."""
    options = runtime.context or AskOptions()
    model = policy(model=options.model, temperature=options.temperature)
    tools = state.get("tools", [])
    system = [SystemMessage(options.system)] if options.system else []
    answer = await (model.bind_tools(tools) if tools else model).ainvoke(
        [*system, *state["messages"]]
    )
    stop = StopReason.MAX_TOKENS if was_cut(answer) else StopReason.ANSWER
    return {"messages": [answer], "stop_reason": stop.value}


graph = (
    StateGraph(CallState, context_schema=AskOptions)
    .add_node("ask", ask)
    .add_edge(START, "ask")
    .add_edge("ask", END)
    .compile()
)
