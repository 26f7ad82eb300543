"""Several models for several roles: two models answer in parallel, and if their answers differ, the
current policy judges.

    hrm-agent run "A farm keeps 23 hens and 45 cows. How many legs do they have?" --graph examples.models_by_role:graph
    hrm-agent run "What is 6 * 7?" --graph examples.models_by_role:graph --context second=openai:gpt-5

`policy()` is the policy that the command names. `policy(model=...)` is another model, given by its
string and loaded on its first call. A training trains only on calls of the current policy. The
built-in hierarchical graph also takes a model for each of its roles: `--graph reasoning --context
'models={planner = "openai:gpt-5"}'`.

By default both models are small policies that come with the package, before and after reinforcement
learning, so the first command needs no key and takes some 10 seconds. They know word problems.
Neither has learned to judge, but on such problems their answers mostly agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NotRequired

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.runtime import Runtime

from hrm_agent.answers.final_answer import final_answer
from hrm_agent.graphs.parts.prompts import TOOL_LOOP_PROMPT
from hrm_agent.models import policy
from hrm_agent.tools import python


@dataclass(frozen=True)
class Models:
    """Options of the run: a model for each role."""

    first: str = "builtin:cold-start"
    second: str = "builtin:trained"


@dataclass(frozen=True)
class One:
    model: str


class State(MessagesState):
    one: NotRequired[str]
    other: NotRequired[str]


async def think(state: MessagesState, runtime: Runtime[One]) -> dict[str, Any]:
    model = policy(model=runtime.context.model).bind_tools([python])
    return {
        "messages": [await model.ainvoke([SystemMessage(TOOL_LOOP_PROMPT), *state["messages"]])]
    }


builder = StateGraph(MessagesState, context_schema=One)
builder.add_node("think", think)
builder.add_node("tools", ToolNode([python]))
builder.add_edge(START, "think")
builder.add_conditional_edges("think", tools_condition)
builder.add_edge("tools", "think")
agent = builder.compile()


async def first(state: State, runtime: Runtime[Models]) -> dict[str, Any]:
    end = await agent.ainvoke({"messages": state["messages"]}, context=One(runtime.context.first))
    return {"one": end["messages"][-1].text}


async def second(state: State, runtime: Runtime[Models]) -> dict[str, Any]:
    end = await agent.ainvoke({"messages": state["messages"]}, context=One(runtime.context.second))
    return {"other": end["messages"][-1].text}


async def judge(state: State) -> dict[str, Any]:
    one, other = state.get("one", ""), state.get("other", "")
    if final_answer(one) == final_answer(other):
        return {"messages": [AIMessage(one)]}
    both = (
        f"{state['messages'][-1].text}\nOne says: {one}\nThe other says: {other}\nWho is right?"
        " Repeat that answer."
    )
    return {"messages": [await policy().ainvoke([HumanMessage(both)])]}


team = StateGraph(State, context_schema=Models)
team.add_node("first", first)
team.add_node("second", second)
team.add_node("judge", judge)
team.add_edge(START, "first")
team.add_edge(START, "second")
team.add_edge(["first", "second"], "judge")
graph = team.compile()
