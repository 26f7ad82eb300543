"""The tool loop: reason, call the Python tool, read the result, answer.

    START -> reason -> tools -> reason -> ... -> END

The loop ends when the policy answers without a tool call, or when a budget is used up; `stop_reason` says which. The
system turn is not part of the state: it belongs to the role, not to the conversation. No node reads a clock: how long
a run took stands in its answers, so that a replay decides as the run did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired

from langchain_core.messages import AIMessage, AnyMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from langgraph.types import StreamWriter
from typing_extensions import TypedDict  # typing's has too little for LangGraph's JSON schemas before Python 3.12

from graphs.prompts import TOOL_LOOP_PROMPT
from hrm_agent.models import invalid_tool_calls, policy, seconds_between, was_cut
from hrm_agent.tools import python, run_tool_calls
from hrm_agent.trajectory import StopReason

__all__ = ["Budget", "LoopState", "build_tool_loop", "graph"]


@dataclass(frozen=True)
class Budget:
    """What one loop may use. Passed as LangGraph's run context."""

    max_turns: int = 8
    """Answers of the policy, the last one included."""
    max_tokens: int = 4096
    """Sampled tokens over all turns."""
    max_seconds: float = 600.0
    """Wall-clock time from the first turn; checked between turns, by the times at which the answers were made."""


class LoopState(TypedDict):
    """The conversation, and why it ended."""

    messages: Annotated[list[AnyMessage], add_messages]
    stop_reason: NotRequired[str | None]
    """A `StopReason` as plain text, which a checkpoint can hold; None while the loop goes on."""


def build_tool_loop(prompt: str) -> CompiledStateGraph[LoopState, Budget, LoopState, LoopState]:
    """The loop under another system turn: a solver is this loop with the solver's prompt."""

    async def reason(state: LoopState, runtime: Runtime[Budget]) -> dict[str, Any]:
        budget = runtime.context or Budget()
        model = policy(max_tokens=budget.max_tokens - _sampled_tokens(state["messages"])).bind_tools([python])
        answer = await model.ainvoke([SystemMessage(prompt), *state["messages"]])
        stop = _stop_reason([*state["messages"], answer], budget)
        return {"messages": [answer], "stop_reason": stop and stop.value}

    async def tools(state: LoopState, config: RunnableConfig, writer: StreamWriter) -> dict[str, Any]:
        answer = _last_answer(state["messages"])
        for call in answer.tool_calls:  # for whoever streams `custom`: the results come only when all have ended
            writer({"event": "tool", "name": call["name"], "id": call["id"], "args": call["args"]})
        return {"messages": await run_tool_calls(answer, [python], config)}

    builder = StateGraph(LoopState, context_schema=Budget)
    builder.add_node("reason", reason)
    builder.add_node("tools", tools)
    builder.add_edge(START, "reason")
    builder.add_conditional_edges("reason", _after_reason, ["tools", END])
    builder.add_edge("tools", "reason")
    return builder.compile()


def _after_reason(state: LoopState) -> str:
    return END if state.get("stop_reason") else "tools"


def _stop_reason(messages: Sequence[AnyMessage], budget: Budget) -> StopReason | None:
    answers = [message for message in messages if isinstance(message, AIMessage)]
    answer = answers[-1]
    if was_cut(answer) or _sampled_tokens(messages) >= budget.max_tokens:
        return StopReason.MAX_TOKENS
    if not (answer.tool_calls or invalid_tool_calls(answer)):
        return StopReason.ANSWER
    if len(answers) >= budget.max_turns:
        return StopReason.MAX_TURNS
    if seconds_between(answers[0], answer) >= budget.max_seconds:
        return StopReason.MAX_SECONDS
    return None


def _last_answer(messages: Sequence[AnyMessage]) -> AIMessage:
    return next(message for message in reversed(messages) if isinstance(message, AIMessage))


def _sampled_tokens(messages: Sequence[AnyMessage]) -> int:
    usages = [message.usage_metadata for message in messages if isinstance(message, AIMessage)]
    return sum(usage["output_tokens"] for usage in usages if usage)


graph = build_tool_loop(TOOL_LOOP_PROMPT)
