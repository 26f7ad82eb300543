r"""Approval of code by a user before it runs: an interrupt between the policy's call and the
sandbox.

    hrm-agent run "A farm keeps 23 hens and 45 cows. How many legs do they have?" --thread farm \
        --graph examples.human_approval:graph
    hrm-agent resume farm --answer yes

The run stops and shows the code as a question. The process may then end, since the thread waits in
the store. The answer `yes` runs the code; any other answer is shown to the policy in place of a
result. In Python, `graph.invoke(Command(resume="yes"), config)` answers. Model calls on record are
not sampled again on resume. Each command takes some 10 seconds.

The small policy writes the code and goes on after `yes`. It was not trained on refusals, so its
reaction to a refusal is arbitrary.
"""

from __future__ import annotations

from typing import Any, Literal

from langchain_core.messages import AIMessage, SystemMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, interrupt

from hrm_agent.graphs.parts.prompts import TOOL_LOOP_PROMPT
from hrm_agent.models import policy
from hrm_agent.tools import python


async def think(state: MessagesState) -> dict[str, Any]:
    model = policy().bind_tools([python])
    return {
        "messages": [await model.ainvoke([SystemMessage(TOOL_LOOP_PROMPT), *state["messages"]])]
    }


def approve(state: MessagesState) -> Command[Literal["think", "tools"]]:
    calls = [
        call for m in state["messages"][-1:] if isinstance(m, AIMessage) for call in m.tool_calls
    ]
    said = interrupt({"May this run?": [call["args"].get("code", "") for call in calls]})
    if said in (True, "yes"):
        return Command(goto="tools")
    refused = [
        ToolMessage(
            f"Refused: {said}", tool_call_id=str(call["id"]), name=call["name"], status="error"
        )
        for call in calls
    ]
    return Command(goto="think", update={"messages": refused})


builder = StateGraph(MessagesState)
builder.add_node("think", think)
builder.add_node("approve", approve)
builder.add_node("tools", ToolNode([python]))
builder.add_edge(START, "think")
builder.add_conditional_edges("think", tools_condition, {"tools": "approve", "__end__": "__end__"})
builder.add_edge("tools", "think")
graph = builder.compile()
