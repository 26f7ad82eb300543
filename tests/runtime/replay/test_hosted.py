"""Hosted models through LangChain's own classes: the record, the message in the state, and what a
replay gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.pregel import Pregel
from pydantic import SecretStr

from hrm_agent.environment import LocalEnvironment
from hrm_agent.models import policy
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.store import RunStore
from hrm_agent.trajectory import RunStatus, TaskRef
from tests.support.serving.providers import TEXT, ProviderServer

TASK = TaskRef(id="1", family="test", prompt="What is 6 * 7?")


@tool
def multiply(a: float, b: float, note: str) -> str:
    """Multiply."""
    return str(a * b)


@pytest.fixture(scope="module")
def provider() -> Iterator[ProviderServer]:
    with ProviderServer() as server:
        yield server


def hosted(name: str, url: str) -> BaseChatModel:
    if name == "openai":
        facts: Any = {"model": "gpt-test", "base_url": f"{url}/v1", "stream_usage": True}
        return ChatOpenAI(**facts, api_key=SecretStr("none"))
    thinking: Any = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048}
    # two seconds, which not every process of the tests has to spend
    from langchain_anthropic import ChatAnthropic

    facts = {"model_name": "claude-test", "base_url": url} | (
        thinking if "thinking" in name else {}
    )
    return ChatAnthropic(**facts, api_key=SecretStr("none"))


def agent(model: Any, *, streams: bool = False) -> Pregel[Any, Any, Any, Any]:
    bound = model.bind_tools([multiply])

    async def think(state: MessagesState) -> dict[str, Any]:
        if not streams:
            return {"messages": [await bound.ainvoke(state["messages"])]}
        whole: Any = None
        async for chunk in bound.astream(state["messages"]):
            whole = chunk if whole is None else whole + chunk
        return {"messages": [whole]}

    builder = (
        StateGraph(MessagesState).add_node("think", think).add_node("tools", ToolNode([multiply]))
    )
    builder.add_edge(START, "think").add_conditional_edges("think", tools_condition).add_edge(
        "tools", "think"
    )
    return builder.compile()


@pytest.mark.parametrize(
    "held", ["by the graph", "by the graph, which streams", "as policy", "as policy, which streams"]
)
@pytest.mark.parametrize("shown", [False, True], ids=["whole", "as in chat"])
@pytest.mark.parametrize(
    "name", ["openai", pytest.param("anthropic", marks=pytest.mark.slow), "anthropic, thinking"]
)
async def test_a_turn_replays_byte_for_byte(
    name: str, shown: bool, held: str, provider: ProviderServer, store: RunStore,
    environment: LocalEnvironment,
) -> None:  # fmt: skip
    model = hosted(name, provider.url)
    graph = agent(policy() if "policy" in held else model, streams="streams" in held)
    chunks: list[Any] = []
    on_chunk: Any = (lambda *given: chunks.append(given)) if shown else None
    with ScriptedEngine([]) as nobody:
        runner = EpisodeRunner(store, model if "policy" in held else nobody, "hosted", environment)
        done = await runner.run(Episode(TASK, "t", graph=graph), on_chunk=on_chunk)
    assert done.status is RunStatus.COMPLETED, done.error
    assert bool(chunks) is shown
    asked = len(provider.asked)
    found = await replay_async(store, "t", graph=graph)
    assert (found.ended, found.changes, found.unused, found.divergence) == ("", (), 0, None)
    assert found.equal and len(provider.asked) == asked
    state = store.checkpointer.get_tuple({"configurable": {"thread_id": "t"}})
    assert state is not None
    kept = [m for m in state.checkpoint["channel_values"]["messages"] if isinstance(m, AIMessage)]
    assert [call.response for call in done.calls] == [
        message.model_dump(mode="json") for message in kept
    ]
    assert [bool(message.tool_calls) for message in kept] == [True, False] and kept[-1].text == TEXT
    assert all(message.usage_metadata for message in kept)
