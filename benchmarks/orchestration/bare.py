"""Agents without this project for comparison: a plain Python loop, and stock LangGraph, around the
same scripted engine.

As in our graphs, the engine's codec encodes prompts and parses answers, since this is the engine's
work and not the graph's.
"""

from __future__ import annotations

import asyncio
import json
import operator
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypedDict

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Send

from benchmarks.orchestration.conversation import PROBLEM, VALUE
from hrm_agent.answers.final_answer import final_answer
from hrm_agent.graphs.parts.prompts import (
    CRITIC_PROMPT,
    PLANNER_PROMPT,
    SOLVER_PROMPT,
    SYNTHESIZER_PROMPT,
    TOOL_LOOP_PROMPT,
    critic_request,
    planner_request,
    solver_request,
    synthesizer_request,
)
from hrm_agent.models.engine import Engine, GenerationRequest
from hrm_agent.trajectory import Sampling

__all__ = ["BareModel", "plain", "reasoning", "tool_loop"]

SAMPLING = Sampling(seed=0)


@tool
async def python(code: str) -> str:
    """Run Python code in a session whose variables live on between calls; returns its last
    expression's value.
    """
    return VALUE


TOOLS = [convert_to_openai_tool(python)]


async def ask(
    engine: Engine, messages: Sequence[BaseMessage], tools: Sequence[dict[str, Any]] = ()
) -> AIMessage:
    """Call the engine without recording."""
    prompt = tuple(engine.codec.encode(messages, tools))
    done = await asyncio.wrap_future(engine.submit(GenerationRequest(prompt, SAMPLING, messages)))
    parsed = engine.codec.parse(engine.codec.decode(done.token_ids))
    calls = [
        {**call, "id": f"call-{len(messages)}-{i}"} for i, call in enumerate(parsed.tool_calls)
    ]
    return AIMessage(parsed.content, tool_calls=calls)


class BareModel(BaseChatModel):
    """LangChain chat model of the engine that keeps no record."""

    engine: Any

    @property
    def _llm_type(self) -> str:
        return "bare"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        answer = await ask(self.engine, messages, kwargs.get("tools", ()))
        return ChatResult(generations=[ChatGeneration(message=answer)])


async def plain(engine: Engine, agent: str) -> str:
    """Run the floor, which has no graph, no callbacks and no state."""
    if agent == "tool_loop":
        return await _plain_loop(engine, TOOL_LOOP_PROMPT, PROBLEM)
    subgoals = json.loads(await _plain_ask(engine, PLANNER_PROMPT, planner_request(PROBLEM)))[
        "subgoals"
    ]
    requests = [solver_request(PROBLEM, subgoal["goal"], {}) for subgoal in subgoals]
    solved = await asyncio.gather(
        *(_plain_loop(engine, SOLVER_PROMPT, request) for request in requests)
    )
    results = {
        one["name"]: final_answer(text) or "" for one, text in zip(subgoals, solved, strict=True)
    }
    assert (
        json.loads(await _plain_ask(engine, CRITIC_PROMPT, critic_request(PROBLEM, results)))[
            "action"
        ]
        == "accept"
    )
    return await _plain_ask(engine, SYNTHESIZER_PROMPT, synthesizer_request(PROBLEM, results, ""))


async def _plain_ask(engine: Engine, prompt: str, request: str) -> str:
    return (await ask(engine, [SystemMessage(prompt), HumanMessage(request)])).text


async def _plain_loop(engine: Engine, prompt: str, request: str) -> str:
    messages: list[BaseMessage] = [SystemMessage(prompt), HumanMessage(request)]
    while (answer := await ask(engine, messages, TOOLS)).tool_calls:
        messages += [
            answer,
            *(ToolMessage(VALUE, tool_call_id=str(call["id"])) for call in answer.tool_calls),
        ]
    return answer.text


def tool_loop(model: Callable[[], BaseChatModel], prompt: str = TOOL_LOOP_PROMPT) -> Any:
    """Tool loop as in LangGraph's documentation."""

    async def think(state: MessagesState) -> dict[str, Any]:
        return {
            "messages": [
                await model()
                .bind_tools([python])
                .ainvoke([SystemMessage(prompt), *state["messages"]])
            ]
        }

    builder = StateGraph(MessagesState)
    builder.add_node("think", think)
    builder.add_node("tools", ToolNode([python]))
    builder.add_edge(START, "think")
    builder.add_conditional_edges("think", tools_condition)
    builder.add_edge("tools", "think")
    return builder.compile()


class Team(TypedDict):
    messages: Annotated[list[AnyMessage], operator.add]
    plan: list[dict[str, Any]]
    results: Annotated[dict[str, str], operator.or_]
    verdict: dict[str, str]


class Part(TypedDict):
    subgoal: dict[str, Any]


def reasoning(model: Callable[[], BaseChatModel]) -> Any:
    """Graph of the four roles with our prompts, without our repair, budgets and revision."""
    solver = tool_loop(model, SOLVER_PROMPT)

    async def asked(prompt: str, request: str) -> AIMessage:
        return await model().ainvoke([SystemMessage(prompt), HumanMessage(request)])

    async def plan(state: Team) -> dict[str, Any]:
        return {
            "plan": json.loads((await asked(PLANNER_PROMPT, planner_request(PROBLEM))).text)[
                "subgoals"
            ]
        }

    def schedule(state: Team) -> list[Send]:
        return [Send("solve", {"subgoal": subgoal}) for subgoal in state["plan"]]

    async def solve(state: Part) -> dict[str, Any]:
        request = solver_request(PROBLEM, state["subgoal"]["goal"], {})
        end = await solver.ainvoke({"messages": [HumanMessage(request)]})
        return {"results": {state["subgoal"]["name"]: final_answer(end["messages"][-1].text) or ""}}

    async def critique(state: Team) -> dict[str, Any]:
        answer = await asked(CRITIC_PROMPT, critic_request(PROBLEM, state["results"]))
        return {"verdict": json.loads(answer.text)}

    async def synthesize(state: Team) -> dict[str, Any]:
        return {
            "messages": [
                await asked(SYNTHESIZER_PROMPT, synthesizer_request(PROBLEM, state["results"], ""))
            ]
        }

    builder = StateGraph(Team)
    builder.add_node("plan", plan)
    builder.add_node("solve", solve, input_schema=Part)
    builder.add_node("critique", critique)
    builder.add_node("synthesize", synthesize)
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", schedule, ["solve"])
    builder.add_edge("solve", "critique")
    builder.add_edge("critique", "synthesize")
    builder.add_edge("synthesize", END)
    return builder.compile()
