"""Users' graphs for the replay tests, each as it was when it was recorded, and as it is after a
change.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Annotated, Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel

from hrm_agent.graphs.parts.prompts import TOOL_LOOP_PROMPT
from hrm_agent.graphs.tool_loop import Budget, LoopState, build_tool_loop
from hrm_agent.models import policy

effects: list[str] = []
"""Outside effects of the tools, oldest first."""


class Logged(MessagesState):
    log: Annotated[list[str], operator.add]


async def answer(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await policy().ainvoke(state["messages"])]}


async def answer_briefly(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await policy().ainvoke([SystemMessage("Be brief."), *state["messages"]])]}


def note(state: Logged) -> dict[str, Any]:
    return {"log": ["seen"]}


chat = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()
chat_with_a_prompt = (
    StateGraph(MessagesState).add_node("answer", answer_briefly).add_edge(START, "answer").compile()
)
chat_with_a_log = (
    StateGraph(Logged)
    .add_node("note", note)
    .add_node("answer", answer)
    .add_edge(START, "note")
    .add_edge("note", "answer")
    .compile()
)


async def ask_twice(state: MessagesState) -> dict[str, Any]:
    before = await policy().ainvoke(state["messages"])
    first, second = interrupt("first?"), interrupt("second?")
    return {"messages": [AIMessage(f"{before.text} {first} {second}")]}


async def check_twice(state: MessagesState, check: str = "Is it right?") -> dict[str, Any]:
    said = await policy().ainvoke(state["messages"])
    return {
        "messages": [said, await policy().ainvoke([*state["messages"], said, HumanMessage(check)])]
    }


async def check_otherwise(state: MessagesState) -> dict[str, Any]:
    return await check_twice(state, "Is it wrong?")


async def look(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await policy().ainvoke(state["messages"])]}


checks = StateGraph(MessagesState).add_node("check", check_twice).add_edge(START, "check").compile()
checks_otherwise = (
    StateGraph(MessagesState).add_node("check", check_otherwise).add_edge(START, "check").compile()
)


class Draft(BaseModel):
    title: str = ""


class Drafting(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages] = []
    draft: Draft | None = None


class DraftingOtherwise(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages] = []
    draft: int | None = None
    kept: Draft | None = None


def draft(state: Any) -> dict[str, Any]:
    return {"draft": Draft(title="first")}


async def write(state: Any) -> dict[str, Any]:
    return {"messages": [await policy().ainvoke(state.messages)]}


def drafting(state: type[Any]) -> Any:
    builder = (
        StateGraph(state).add_node("draft", draft).add_node("write", write).add_edge(START, "draft")
    )
    builder.add_conditional_edges(
        "draft", lambda state: END if state.draft.title == "done" else "write"
    )
    return builder.compile()


drafts, drafts_of_another_form = drafting(Drafting), drafting(DraftingOtherwise)
asks_twice = StateGraph(MessagesState).add_node("ask", ask_twice).add_edge(START, "ask").compile()
asks_inside = (
    StateGraph(MessagesState)
    .add_node("look", look)
    .add_node(
        "inside",
        StateGraph(MessagesState)
        .add_node("look", look)
        .add_node("ask", ask_twice)
        .add_edge(START, "look")
        .add_edge("look", "ask")
        .compile(),
    )
    .add_edge(START, "look")
    .add_edge("look", "inside")
    .compile()
)


def fan_out(state: MessagesState) -> Sequence[Send]:
    return [Send("inside", state), Send("inside", state)]


asks_side_by_side = (
    StateGraph(MessagesState)
    .add_node(
        "inside",
        StateGraph(MessagesState)
        .add_node("look", look)
        .add_node("ask", ask_twice)
        .add_edge(START, "look")
        .add_edge("look", "ask")
        .compile(),
    )
    .add_conditional_edges(START, fan_out, ["inside"])
    .compile()
)


async def fail(state: MessagesState) -> dict[str, Any]:
    raise ValueError((await policy().ainvoke(state["messages"])).text)


fails = StateGraph(MessagesState).add_node("answer", fail).add_edge(START, "answer").compile()


@tool
def broken(x: int) -> str:
    """Raises."""
    effects.append("broken")
    raise KeyError(f"no {x}")


@tool
def steers(x: int, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Goes elsewhere."""
    effects.append("steers")
    return Command(update={"messages": [ToolMessage(f"went {x}", tool_call_id=tool_call_id)]})


@tool(response_format="content_and_artifact")
def plain(x: int) -> tuple[str, dict[str, Any]]:
    """Has an artifact."""
    effects.append("plain")
    return f"{x}", {"rows": [x, x]}


def call_tools(state: MessagesState) -> dict[str, Any]:
    calls = [{"name": name, "args": {"x": i}, "id": f"c{i}"} for i, name in enumerate(["broken"])]
    return {"messages": [AIMessage("", tool_calls=calls)]}


def call_more(state: MessagesState) -> dict[str, Any]:
    calls = [{"name": name, "args": {"x": i}, "id": f"d{i}"} for i, name in enumerate(["steers"])]
    return {"messages": [AIMessage("", tool_calls=calls)]}


def by_hand(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(plain.invoke({"x": 3}))]}


handy = (
    StateGraph(MessagesState)
    .add_sequence(
        [
            ("call", call_tools),
            (
                "run",
                ToolNode(
                    [broken], handle_tool_errors=lambda error: f"sorry: {type(error).__name__}"
                ),
            ),
            ("more", call_more),
            ("steer", ToolNode([steers])),
            ("hand", by_hand),
        ]
    )
    .add_edge(START, "call")
    .compile()
)


def _hinted() -> Any:
    """The tool loop with a hint after the first result."""
    loop = build_tool_loop(TOOL_LOOP_PROMPT)

    async def hint(state: LoopState) -> dict[str, Any]:
        last: AnyMessage = state["messages"][-1]
        return {"messages": [SystemMessage("Check it.", id="hint")]} if last.type == "tool" else {}

    builder = loop.builder.__class__(LoopState, context_schema=Budget)
    builder.nodes, builder.edges = dict(loop.builder.nodes), set(loop.builder.edges)
    builder.branches.update({k: v for k, v in loop.builder.branches.items() if k != "tools"})
    return (
        builder.add_node("hint", hint)
        .add_edge("tools", "hint")
        .add_edge("hint", "reason")
        .compile()
    )


hinted_loop = _hinted()
