"""Thoughts of a policy in its messages: apart from the content, counted, and once, however the
model is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk
from langgraph.graph import START, MessagesState, StateGraph

from hrm_agent.models import PolicyModel
from hrm_agent.models.call_recording import CALL_ID
from hrm_agent.models.codec.thoughts import REASONING, reasoning_of
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.store import RunStore
from hrm_agent.trajectory import Recording, recording
from tests.support.graphs.thinking import thinking_codec

THOUGHT = "Six sevens: the sum of six numbers."
SAID = "It is 42."
TEXT = f"<think>\n{THOUGHT}\n</think>\n\n{SAID}"


def joined(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    return whole


async def invoked(model: PolicyModel) -> Any:
    return await model.ainvoke("q")


async def streamed(model: PolicyModel) -> Any:
    chunks = [chunk async for chunk in model.astream("q")]
    assert [chunk for chunk in chunks[:-1] if REASONING in chunk.additional_kwargs] == []
    return joined(chunks)


async def from_another_thread(model: PolicyModel) -> Any:
    return joined(list(model.stream("q")))


async def with_events(model: PolicyModel) -> Any:
    """Through a graph, which streams behind an `invoke`."""

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()
    chunks: list[AIMessageChunk] = []
    async for event in graph.astream_events({"messages": [("human", "q")]}, version="v2"):
        if event["event"] == "on_chat_model_stream":
            chunks.append(event["data"]["chunk"])
    assert len(chunks) > 3
    return joined(chunks)


@pytest.mark.parametrize("ask", [invoked, streamed, from_another_thread, with_events])
async def test_they_stand_beside_the_content_once(
    ask: Callable[[PolicyModel], Any], store: RunStore
) -> None:
    codec = thinking_codec()
    with ScriptedEngine([TEXT], codec=codec) as engine, recording(Recording(store.journal)):
        message = await ask(PolicyModel(backend=engine))
    call = store.journal.find_call(message.response_metadata[CALL_ID])
    assert call is not None
    whole = AIMessage.model_validate(call.response)
    for each in (message, whole):
        assert (each.text, reasoning_of(each)) == (SAID, THOUGHT)
        assert [block["type"] for block in each.content_blocks] == ["reasoning", "text"]
        counted = each.usage_metadata
        assert counted["output_tokens"] == call.sampled_tokens
        sampled = call.token_ids[-call.sampled_tokens :]
        thought = counted["output_token_details"]["reasoning"]
        assert codec.decode(sampled[:thought]) == TEXT.removesuffix(f"\n\n{SAID}")
    assert call.used is not None and call.used.reasoning_tokens == codec.thought_tokens(sampled)


async def test_an_answer_without_thoughts_has_no_such_count(store: RunStore) -> None:
    with (
        ScriptedEngine([SAID], codec=thinking_codec()) as engine,
        recording(Recording(store.journal)),
    ):
        message = await PolicyModel(backend=engine).ainvoke("q")
    assert message.additional_kwargs == {} and "output_token_details" not in (
        message.usage_metadata or {}
    )
