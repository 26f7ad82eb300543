"""Search loop: one sub-question -> a finding, by searching and reading.

    START -> reason -> tools -> reason -> ... -> END

The loop is the tool loop with other tools and three additions. Whole sources that were read move
from the messages to a separate channel, so that messages have only the text that was shown to the
model. Searches and reads are counted: a call over the limit gets a refusal as its result, which
asks the model to end with its findings so far and is recorded like any result. A searcher that
answers without any search is reminded once to use the tools.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.config import get_config
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime

# before Python 3.12, LangGraph's JSON schemas need the TypedDict of typing_extensions
from typing_extensions import TypedDict

from hrm_agent.graphs.parts.budget import LoopBudget, sampled_tokens
from hrm_agent.graphs.parts.loop import calls_tools, last_answer, loop_stop
from hrm_agent.graphs.parts.prompts import SEARCHER_PROMPT
from hrm_agent.graphs.parts.roles import chat_model
from hrm_agent.graphs.research.sources import Source
from hrm_agent.graphs.research.state import ResearchContext
from hrm_agent.graphs.research.tools import IDS_OF_A_CALL, Toolbox
from hrm_agent.tools import run_tool_calls

__all__ = ["SearchContext", "SearchState", "build_search"]

NOTHING_READ = "Nothing was searched or read. Use the tools, then say what the sources have."


@dataclass(frozen=True)
class SearchContext:
    """Run context of the loop that searches for one question."""

    research: ResearchContext
    """Run context of the research graph: sources, and limits of one searcher."""
    about: str
    """Text of the question and its queries, by which passages are chosen."""
    first_id: int
    """Number of the first new source."""
    has_sources: bool
    """True if remembered sources were shown to the searcher, so that it may answer without a
    search.
    """
    budget: LoopBudget
    """Budget of this search."""


class SearchState(TypedDict):
    """State of one search."""

    messages: Annotated[list[AnyMessage], add_messages]
    """Conversation of the searcher: its question, its replies, and the tools' results."""
    sources: NotRequired[Annotated[list[Source], operator.add]]
    """Sources in the order in which they were read."""
    stop_reason: NotRequired[str]
    """`StopReason` as plain text (empty while the loop continues)."""


def build_search(
    model: BaseChatModel | None = None,
    tools: Sequence[BaseTool] = (),
) -> CompiledStateGraph[SearchState, SearchContext, SearchState, SearchState]:
    """Return the compiled loop. `model`: chat model (None: the current policy). `tools`: your
    tools, in addition to those that the context names.
    """

    async def reason(state: SearchState, runtime: Runtime[SearchContext]) -> dict[str, Any]:
        context = _context(runtime)
        research = context.research
        left = context.budget.max_tokens - sampled_tokens(state["messages"])
        limit = min(left, research.max_answer_tokens)
        offered = Toolbox(research, tools).descriptions()
        chat = chat_model(
            research.model or model, tools=offered, temperature=research.temperature, budget=limit
        )
        answer = await chat.ainvoke([SystemMessage(SEARCHER_PROMPT), *state["messages"]])
        messages = [*state["messages"], answer]
        answers = sum(isinstance(message, AIMessage) for message in messages)
        # True if it need not search, tools have answered, or it was reminded
        looked = context.has_sources or len(messages) > answers + 1
        stop = loop_stop(messages, context.budget, final=looked and not calls_tools(answer))
        return {"messages": [answer], "stop_reason": stop.value if stop else ""}

    async def call_tools(state: SearchState, runtime: Runtime[SearchContext]) -> dict[str, Any]:
        results = await _answers(state["messages"], _context(runtime), tools, get_config())
        read = [
            source
            for result in results
            for source in ((result.artifact or {}).get("artifact") or [])
        ]
        return {"messages": [_without_artifact(result) for result in results], "sources": read}

    def remind(state: SearchState) -> dict[str, Any]:
        return {"messages": [HumanMessage(NOTHING_READ, id=f"{state['messages'][-1].id}-reminded")]}

    builder = StateGraph(SearchState, context_schema=SearchContext)
    builder.add_node("reason", reason)
    builder.add_node("tools", call_tools)
    builder.add_node("remind", remind)
    builder.add_edge(START, "reason")
    builder.add_conditional_edges("reason", _after_reason, ["tools", "remind", END])
    builder.add_edge("tools", "reason")
    builder.add_edge("remind", "reason")
    return builder.compile()


async def _answers(
    messages: Sequence[AnyMessage],
    context: SearchContext,
    own: Sequence[BaseTool],
    config: RunnableConfig,
) -> list[ToolMessage]:
    """Run all tool calls of the last answer in parallel. Each call has a separate range of numbers
    for new sources.
    """
    answer = last_answer(messages)
    before = [
        call["name"]
        for one in messages[:-1]
        if isinstance(one, AIMessage)
        for call in one.tool_calls
    ]
    first_id = context.first_id + IDS_OF_A_CALL * len(before)
    toolbox = Toolbox(context.research, own)
    waiting = [run_tool_calls(answer.model_copy(update={"tool_calls": []}), [], config)]
    for number, call in enumerate(answer.tool_calls):
        tools = toolbox.tools(context.about, first_id + IDS_OF_A_CALL * number, before)
        alone = {
            "tool_calls": [{**call, "id": call["id"] or f"call_{number}"}],
            "invalid_tool_calls": [],
        }
        waiting.append(
            run_tool_calls(_without_invalid(answer).model_copy(update=alone), tools, config)
        )
        before.append(call["name"])
    undecoded, *decoded = await asyncio.gather(*waiting, return_exceptions=True)
    results = [*decoded, undecoded]
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [message for result in results if isinstance(result, list) for message in result]


def _without_invalid(answer: AIMessage) -> AIMessage:
    """Remove undecodable calls from the metadata of an answer. The metadata of a streamed answer
    has them, too.
    """
    metadata = {
        name: value
        for name, value in answer.response_metadata.items()
        if name != "invalid_tool_calls"
    }
    return answer.model_copy(update={"response_metadata": metadata})


def _without_artifact(result: ToolMessage) -> ToolMessage:
    kept = {name: value for name, value in (result.artifact or {}).items() if name != "artifact"}
    return result.model_copy(update={"artifact": kept})


def _context(runtime: Runtime[SearchContext]) -> SearchContext:
    assert runtime.context is not None, "the research graph gives it"
    return runtime.context


async def _after_reason(state: SearchState) -> str:
    if state.get("stop_reason"):
        return END
    return "tools" if calls_tools(last_answer(state["messages"])) else "remind"
