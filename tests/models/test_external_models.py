"""Chat models that a graph holds itself: asked once for each request, however they are called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from hrm_agent.models.external_models import record_external_models
from hrm_agent.trajectory import MemoryJournal, Recording, recording

CONFIG: Any = {
    "metadata": {"thread_id": "t", "langgraph_checkpoint_ns": "ask:1", "langgraph_node": "ask", "langgraph_step": 1}
}
QUESTION = [HumanMessage("hello there")]


class Hosted(BaseChatModel):
    """Counts what it is asked; answers with its number, a tool call and a fact about the answer."""

    model: str = "hosted-1"
    asked: list[int] = []

    @property
    def _llm_type(self) -> str:
        return "hosted"

    def _next(self) -> str:
        self.asked.append(len(self.asked))
        return f"answer {self.asked[-1]}"

    def _generate(self, messages: Any, *args: Any, **options: Any) -> ChatResult:
        calls = [{"name": "f", "args": {"x": 1}, "id": "c", "type": "tool_call"}]
        message = AIMessage(self._next(), tool_calls=calls, response_metadata={"tier": "gold"})
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(self, messages: Any, *args: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
        for part in self._next().split():
            yield ChatGenerationChunk(message=AIMessageChunk(content=part))
        yield ChatGenerationChunk(message=AIMessageChunk(content="", response_metadata={"tier": "gold"}))


@pytest.fixture
def journal() -> MemoryJournal:
    record_external_models()
    return MemoryJournal()


def drain(chunks: Iterator[Any]) -> tuple[AIMessage, int]:
    seen = list(chunks)
    whole = seen[0]
    for chunk in seen[1:]:
        whole += chunk
    return whole, len(seen)


async def ask(model: Any, how: str) -> tuple[AIMessage, int]:
    if how == "invoke":
        return model.invoke(QUESTION, CONFIG), 1
    if how == "ainvoke":
        return await model.ainvoke(QUESTION, CONFIG), 1
    if how == "stream":
        return drain(model.stream(QUESTION, CONFIG))
    return drain(iter([chunk async for chunk in model.astream(QUESTION, CONFIG)]))


@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream", "astream"])
async def test_it_is_asked_once_and_answers_the_same(how: str, journal: MemoryJournal) -> None:
    model = Hosted(asked=[])
    with recording(Recording(journal)):
        first, chunks = await ask(model, how)
    assert chunks > 1 or "stream" not in how
    with recording(Recording(journal)):  # the node runs again
        again, chunks = await ask(model, how)
        more, _ = await ask(model, how)
    assert len(model.asked) == 2, "a second request of the node is a request of its own"
    assert chunks == 1, "a recorded answer comes as one chunk"
    kept = {"content", "id", "tool_calls", "response_metadata", "usage_metadata"}
    assert again.model_dump(include=kept) == first.model_dump(include=kept)
    assert (first.response_metadata["tier"] == "gold") and more.text != first.text
    calls = journal.calls_of_task("t", "1")
    assert [call.call_index for call in calls] == [0, 1]
    assert [call.model for call in calls] == ["hosted-1"] * 2 and all(call.untrainable for call in calls)


async def test_the_record_is_there_before_the_last_chunk_is_seen(journal: MemoryJournal) -> None:
    with recording(Recording(journal)):
        stream = Hosted(asked=[]).stream(QUESTION, CONFIG)
        seen = [len(journal.calls_of_task("t", "1")) for _ in stream]
    assert seen[0] == 0 and seen[-1] == 1


class Repeating(Hosted):
    """Says with each chunk which model it is."""

    def _stream(self, messages: Any, *args: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
        for part, reason in (("a", ""), ("b", "stop")):
            told = {"model_name": "hosted-1", "finish_reason": reason}
            yield ChatGenerationChunk(message=AIMessageChunk(content=part, response_metadata=told))


@pytest.mark.parametrize("how", ["stream", "astream"])
async def test_what_every_chunk_says_is_on_record_once(how: str, journal: MemoryJournal) -> None:
    with recording(Recording(journal)):
        await ask(Repeating(asked=[]), how)
    (call,) = journal.calls_of_task("t", "1")
    assert call.answered_by == "hosted-1"
    assert call.response["response_metadata"]["finish_reason"] == "stop"


async def test_a_stream_that_is_left_is_on_no_record(journal: MemoryJournal) -> None:
    active = Recording(journal)
    with recording(active):
        stream = Hosted(asked=[]).stream(QUESTION, CONFIG)
        next(stream)
        stream.close()  # pyright: ignore[reportAttributeAccessIssue]
        assert journal.calls_of_task("t", "1") == []
        await ask(Hosted(asked=[]), "invoke")
    assert [call.call_index for call in journal.calls_of_task("t", "1")] == [0], "its index was given back"


@pytest.mark.parametrize("difference", [{"stop": ["."]}, {"tool_choice": "any"}, {"model": "hosted-2"}])
async def test_another_request_is_asked(difference: dict[str, Any], journal: MemoryJournal) -> None:
    model = Hosted(asked=[])
    with recording(Recording(journal)):
        model.invoke(QUESTION, CONFIG)
    with recording(Recording(journal)):
        model.invoke(QUESTION, CONFIG, **difference)
    assert len(model.asked) == 2


async def test_outside_of_a_recording_and_of_a_graph_nothing_changes(journal: MemoryJournal) -> None:
    model = Hosted(asked=[])
    model.invoke(QUESTION, CONFIG)
    with recording(Recording(journal)):
        assert "call_id" not in model.invoke(QUESTION).response_metadata
    assert len(model.asked) == 2 and journal.calls_of_task("t", "1") == []
